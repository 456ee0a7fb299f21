#include "kv/hosted_batch.h"

#include "base/coding.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

std::string SlotKey(const std::string& slot) { return kSlotPrefix + slot; }

}  // namespace

size_t BytesOf(const Transaction& transaction) {
  size_t bytes = 0;
  for (const KvWrite& write : transaction.writes) bytes += write.key.size() + (write.value ? write.value->size() : 0);
  return bytes;
}

Result<HostedBatch::Entry> HostedBatch::Find(const std::string& engine_key) const {
  if (auto found = entries_.find(engine_key); found != entries_.end()) return found->second;
  CAIRNFS_ASSIGN_OR_RETURN(std::optional<std::string> text, engine_.Get(engine_key));
  if (!text) return Entry{};
  CAIRNFS_ASSIGN_OR_RETURN(StoredValue stored, DecodeStored(engine_key, *text));
  return Entry{stored.revision, std::string(stored.value), leases_.LeaseOf(engine_key)};
}

Result<bool> HostedBatch::RangeHolds(const Compare& compare) const {
  const std::string begin = EngineKey(compare.key), end = EngineRangeEnd(compare.range_end);
  if (end <= begin) return true;
  const bool wants_empty = compare.kind == Compare::Kind::kRangeEmpty;
  for (auto it = entries_.lower_bound(begin); it != entries_.end() && it->first < end; ++it) {
    if (it->second.value && (wants_empty || it->second.revision > compare.revision)) return false;
  }
  bool holds = true;
  Status decoded;
  auto visit = [&](std::string_view engine_key, std::string_view text) {
    if (entries_.contains(engine_key)) return true;
    Result<StoredValue> stored = DecodeStored(engine_key, text);
    if (!stored.ok()) decoded = stored.error();
    holds = stored.ok() && !wants_empty && stored->revision <= compare.revision;
    return holds;
  };
  CAIRNFS_RETURN_IF_ERROR(engine_.Scan(begin, end, nullptr, visit));
  CAIRNFS_RETURN_IF_ERROR(decoded);
  return holds;
}

Result<bool> HostedBatch::Holds(const Compare& compare) const {
  if (IsRange(compare)) return RangeHolds(compare);
  CAIRNFS_ASSIGN_OR_RETURN(Entry entry, Find(EngineKey(compare.key)));
  return PointHolds(compare, entry.revision);
}

Status HostedBatch::CheckLeases(const Transaction& transaction, const SlotClaim* slot) const {
  auto lives = [this](LeaseId lease) { return lease == 0 || (leases_.Lives(lease) && !ended_.contains(lease)); };
  for (const KvWrite& write : transaction.writes) {
    if (write.value && !lives(write.lease)) {
      return MakeError(ErrorCode::kNotFound, "a lease that the transaction writes with has ended");
    }
  }
  if (slot == nullptr || lives(slot->lease)) return {};
  return MakeError(ErrorCode::kNotFound, "the lease of the transaction's slot has ended");
}

Result<bool> HostedBatch::Lengthens(const Transaction& transaction) const {
  size_t before_bytes = 0;
  for (const KvWrite& write : transaction.writes) {
    CAIRNFS_ASSIGN_OR_RETURN(const Entry before, Find(EngineKey(write.key)));
    if (before.value) before_bytes += write.key.size() + before.value->size();
    if (!write.value) before_bytes += write.key.size();  // BytesOf counts it
  }
  return BytesOf(transaction) > before_bytes;
}

Status HostedBatch::CheckRoom(const Transaction& transaction) const {
  if (transaction.makes_names_for) return admit_(NameChange::kMakes, *transaction.makes_names_for, bytes_);
  if (!transaction.may_lengthen) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const bool lengthens, Lengthens(transaction));
  return lengthens ? admit_(NameChange::kAlters, 0, bytes_) : Status();
}

Result<std::vector<KvEvent>> HostedBatch::EventsOf(const Transaction& transaction, uint64_t revision) const {
  std::map<std::string_view, const KvWrite*> last;
  for (const KvWrite& write : transaction.writes) last[write.key] = &write;
  std::vector<KvEvent> events;
  for (const auto& [key, write] : last) {
    if (!write->value) {
      CAIRNFS_ASSIGN_OR_RETURN(Entry before, Find(EngineKey(key)));
      if (before.revision == 0) continue;
    }
    events.push_back(KvEvent{std::string(key), write->value, revision});
  }
  return events;
}

Result<SlottedAnswer> HostedBatch::Commit(const Transaction& transaction, const SlotClaim* slot) {
  SlottedAnswer answer;
  bool holds = true;
  for (const Compare& compare : transaction.compares) {
    CAIRNFS_ASSIGN_OR_RETURN(holds, Holds(compare));
    if (!holds) break;
  }
  if (slot != nullptr) {
    CAIRNFS_ASSIGN_OR_RETURN(Entry entry, Find(SlotKey(slot->slot)));
    holds = holds && entry.revision == slot->expected_revision;
    answer.slot_revision = entry.revision;
    answer.slot_value = entry.value.value_or("");
  }
  if (!holds) return answer;
  CAIRNFS_RETURN_IF_ERROR(CheckLeases(transaction, slot));
  // Last, of what would run: one whose first answer was lost is not refused after it ran.
  CAIRNFS_RETURN_IF_ERROR(CheckRoom(transaction));
  answer = SlottedAnswer{.committed = true, .revision = revision_};
  if (transaction.writes.empty() && slot == nullptr) return answer;

  answer.revision = NextRevision();
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<KvEvent> events, EventsOf(transaction, answer.revision));
  auto put = [&](std::string engine_key, const std::optional<std::string>& value, LeaseId lease) {
    entries_[std::move(engine_key)] = Entry{value ? answer.revision : 0, value, value ? lease : 0};
  };
  for (const KvWrite& write : transaction.writes) put(EngineKey(write.key), write.value, write.lease);
  bytes_ += BytesOf(transaction);
  if (slot != nullptr) put(SlotKey(slot->slot), slot->value, slot->lease);
  revision_ = answer.revision;
  changes_.emplace_back(revision_, std::move(events));
  return answer;
}

Status HostedBatch::EndLease(LeaseId lease) {
  if (!leases_.Knows(lease) || ended_.contains(lease)) return {};
  std::set<std::string> keys = leases_.KeysOf(lease);
  for (const auto& [engine_key, entry] : entries_) {
    if (entry.lease == lease) {
      keys.insert(engine_key);
    } else {
      keys.erase(engine_key);
    }
  }
  ended_.insert(lease);
  if (keys.empty()) return {};
  revision_ = NextRevision();
  std::vector<KvEvent> events;
  for (const std::string& engine_key : keys) {
    entries_[engine_key] = Entry{};
    if (engine_key[0] == kKeyPrefix) events.push_back(KvEvent{engine_key.substr(1), std::nullopt, revision_});
  }
  changes_.emplace_back(revision_, std::move(events));
  return {};
}

void HostedBatch::Seal() {
  if (empty() || !changes_.empty()) return;
  revision_ = NextRevision();
  changes_.emplace_back(revision_, std::vector<KvEvent>());
}

std::vector<EngineWrite> HostedBatch::Writes() const {
  std::vector<EngineWrite> writes;
  writes.reserve(entries_.size() + 1);
  for (const auto& [engine_key, entry] : entries_) {
    writes.push_back(EngineWrite{engine_key, std::nullopt});
    if (entry.value) writes.back().value = EncodeStored(entry.revision, *entry.value);
    const LeaseId before = leases_.LeaseOf(engine_key);
    if (before == entry.lease) continue;
    if (before != 0) writes.push_back(EngineWrite{AttachmentKey(before, engine_key), std::nullopt});
    if (entry.lease != 0) writes.push_back(EngineWrite{AttachmentKey(entry.lease, engine_key), ""});
  }
  for (const auto& [lease, ttl] : granted_) {
    writes.push_back(EngineWrite{LeaseKey(lease), Encoder().U64(static_cast<uint64_t>(ttl.count())).Take()});
  }
  for (LeaseId lease : ended_) writes.push_back(EngineWrite{LeaseKey(lease), std::nullopt});
  writes.push_back(EngineWrite{std::string(kRevisionKey), Encoder().U64(revision_).Take()});
  return writes;
}

void HostedBatch::ApplyTo(LeaseTable& leases) const {
  for (const auto& [lease, ttl] : granted_) leases.Add(lease, ttl);
  for (const auto& [engine_key, entry] : entries_) {
    if (leases.LeaseOf(engine_key) != entry.lease) leases.Attach(engine_key, entry.lease);
  }
  for (LeaseId lease : ended_) leases.Remove(lease);
}

}  // namespace cairnfs::kv
