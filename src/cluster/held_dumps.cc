#include "cluster/held_dumps.h"

#include <algorithm>

#include "base/clock.h"
#include "base/coding.h"
#include "base/log.h"
#include "base/utc_text.h"
#include "cluster/epochs.h"
#include "cluster/membership.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kHoldVersion = 1;
constexpr size_t kHoldKeyBytes = 1 + 8, kHeldRecordKeyBytes = kHoldKeyBytes + 8;
constexpr size_t kKeysPerRelease = 1000;
constexpr auto kCollectionWaitMax = std::chrono::minutes(10);
constexpr std::chrono::milliseconds kCollectionLookEvery{200};
constexpr auto kTakingMax = std::chrono::hours(24);  // what a host leaves that dies in a dump
constexpr auto kTakeBackMax = std::chrono::seconds(5);

std::string HoldKeyOf(uint64_t id) { return std::string(kHeldPrefix) + Encoder().BigEndianU64(id).Take(); }

Timestamp After(const Timestamp& time, Clock::duration duration) {
  return {time.seconds + std::chrono::duration_cast<std::chrono::seconds>(duration).count(), time.nanoseconds};
}

}  // namespace

std::string HeldDump::Encode() const {
  return Encoder()
      .U8(kHoldVersion)
      .U8(is_complete ? 1 : 0)
      .Time(taken)
      .Time(until)
      .U64(records)
      .LengthPrefixed(host)
      .Take();
}

Result<HeldDump> HeldDump::Decode(const kv::KvEntry& entry) {
  Decoder decoder(entry.value);
  const uint8_t version = decoder.U8(), is_complete = decoder.U8();
  HeldDump hold;
  hold.is_complete = is_complete == 1;
  hold.taken = decoder.Time();
  hold.until = decoder.Time();
  hold.records = decoder.U64();
  hold.host = std::string(decoder.LengthPrefixed());
  if (!IsHold(entry.key) || !decoder.Finished() || version != kHoldVersion || is_complete > 1) {
    return MakeError(ErrorCode::kCorrupt, "the hold of a dump does not decode");
  }
  hold.id = Decoder(std::string_view(entry.key).substr(kHeldPrefix.size())).BigEndianU64();
  return hold;
}

bool IsHold(std::string_view key) { return key.size() == kHoldKeyBytes && key.starts_with(kHeldPrefix); }

bool IsHeldRecord(std::string_view key) { return key.size() == kHeldRecordKeyBytes && key.starts_with(kHeldPrefix); }

uint64_t HoldOfKey(std::string_view key) { return Decoder(key.substr(kHeldPrefix.size(), 8)).BigEndianU64(); }

const std::string& HoldingKey() {
  static const std::string key = "WP";
  return key;
}

HoldInTheMaking::~HoldInTheMaking() {
  if (hold_.id == 0) return;
  const Status taken_back = TakeBack(Context().WithTimeout(kTakeBackMax));
  if (taken_back.ok() || taken_back.error().code == ErrorCode::kConflict) return;
  spdlog::warn("the hold {} of a dump that failed could not be taken back: {}", hold_.id, taken_back.error().message);
}

Status HoldInTheMaking::TakeBack(const Context& context) {
  const Status released = ReleaseHold(context, store_, hold_.id);
  if (!released.ok() && released.error().code != ErrorCode::kNotFound) return released;
  CAIRNFS_ASSIGN_OR_RETURN(const auto holding, store_.Get(context, HoldingKey()));
  if (!holding || holding->value != std::to_string(hold_.id)) return {};
  kv::Transaction transaction;
  transaction.IfRevision(HoldingKey(), holding->revision).Delete(HoldingKey());
  const auto deleted = store_.Commit(context, transaction);
  return deleted.ok() ? Status() : Status(deleted.error());
}

Status HoldInTheMaking::Begin(const Context& context, const std::string& host) {
  CAIRNFS_ASSIGN_OR_RETURN(const Membership::Session session, membership_.session());
  HeldDump hold;
  hold.taken = Clock::WallTime();
  hold.until = After(hold.taken, kTakingMax);
  hold.host = host;
  hold.id = static_cast<uint64_t>(hold.taken.seconds) * 1'000'000 + hold.taken.nanoseconds / 1000;
  kv::Transaction transaction;
  transaction.IfAbsent(HoldingKey()).IfAbsent(HoldKeyOf(hold.id)).Put(HoldKeyOf(hold.id), hold.Encode());
  transaction.writes.push_back({HoldingKey(), std::to_string(hold.id), session.lease});
  hold_ = std::move(hold);  // it may be there also where there is no answer
  const auto begun = store_.Commit(context, transaction);
  if (!begun.ok() && begun.error().code == ErrorCode::kConflict) {
    hold_ = {};
    return MakeError(ErrorCode::kBusy, "another dump that holds is being taken: call again when it is done");
  }
  CAIRNFS_RETURN_IF_ERROR(begun);
  revision_ = *begun;
  return AwaitCollections(context);
}

Status HoldInTheMaking::AwaitCollections(const Context& context) {
  Epochs epochs(store_, membership_);
  const Context patience = context.WithTimeout(kCollectionWaitMax);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const EpochState state, epochs.Read(context));
    if (state.IsOver() || (state.hold && !state.IsSwept())) return {};
    if (patience.Sleep(kCollectionLookEvery)) continue;
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the dump was stopped");
    return MakeError(ErrorCode::kBusy, "a collection is under way and does not end: see cairnfs cluster status");
  }
}

Status HoldInTheMaking::Add(const Context& context, std::string_view key, std::string_view value) {
  const kv::KvLimits limits = store_.limits();
  const bool is_full = pending_.writes.size() + 1 >= limits.operations_per_transaction_max ||
                       pending_bytes_ + key.size() + value.size() > limits.transaction_bytes_max / 2;
  if (is_full) CAIRNFS_RETURN_IF_ERROR(Flush(context));
  pending_.Put(HoldKeyOf(hold_.id) + std::string(key.substr(1)), std::string(value));
  pending_bytes_ += key.size() + value.size();
  ++hold_.records;
  return {};
}

Status HoldInTheMaking::Flush(const Context& context) {
  kv::Transaction transaction = std::exchange(pending_, {});
  pending_bytes_ = 0;
  if (transaction.writes.empty()) return {};
  transaction.makes_names_for = 0;  // not from what is kept for removing names
  const auto committed = store_.Commit(context, transaction);
  return committed.ok() ? Status() : Status(committed.error());
}

Result<HeldDump> HoldInTheMaking::Finish(const Context& context, Clock::duration hold) {
  CAIRNFS_RETURN_IF_ERROR(Flush(context));
  HeldDump held = hold_;
  held.until = After(Clock::WallTime(), hold);
  held.is_complete = true;
  kv::Transaction transaction;
  transaction.IfRevision(HoldingKey(), revision_).Delete(HoldingKey()).Put(HoldKeyOf(held.id), held.Encode());
  const auto finished = store_.Commit(context, transaction);
  if (!finished.ok() && finished.error().code == ErrorCode::kConflict) {
    return MakeError(ErrorCode::kStale, "this host's session was lost during the dump, so nothing is held");
  }
  CAIRNFS_RETURN_IF_ERROR(finished);
  hold_ = {};
  return held;
}

Result<std::vector<HeldDump>> ListHolds(const Context& context, kv::KvStore& store) {
  std::vector<HeldDump> holds;
  std::string begin(kHeldPrefix);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, store.Range(context, begin, kv::PrefixEnd(kHeldPrefix), 1));
    if (range.entries.empty()) return holds;
    CAIRNFS_ASSIGN_OR_RETURN(HeldDump hold, HeldDump::Decode(range.entries.front()));
    begin = kv::PrefixEnd(range.entries.front().key);
    holds.push_back(std::move(hold));
  }
}

// The hold itself goes last, so that a release that was cut short can be called again.
Status ReleaseHold(const Context& context, kv::KvStore& store, uint64_t id) {
  const std::string key = HoldKeyOf(id);
  CAIRNFS_ASSIGN_OR_RETURN(const auto hold, store.Get(context, key));
  if (!hold) return MakeError(ErrorCode::kNotFound, "no dump is held as " + std::to_string(id));
  const size_t at_once = std::min(kKeysPerRelease, store.limits().operations_per_transaction_max - 1);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, store.Range(context, key + '\0', kv::PrefixEnd(key), at_once));
    kv::Transaction transaction;
    for (const kv::KvEntry& entry : range.entries) transaction.Delete(entry.key);
    if (!range.more) transaction.Delete(key);
    CAIRNFS_RETURN_IF_ERROR(store.Commit(context, transaction));
    if (!range.more) return {};
  }
}

Status ReleaseEndedHolds(const Context& context, kv::KvStore& store) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<HeldDump> holds, ListHolds(context, store));
  for (const HeldDump& hold : holds) {
    if (Clock::WallTime() < hold.until) continue;
    const Status released = ReleaseHold(context, store, hold.id);
    if (!released.ok() && released.error().code != ErrorCode::kNotFound) return released;
    spdlog::info("the dump that host {} took at {} is held no more: its time is over", hold.host, UtcText(hold.taken));
  }
  return {};
}

}  // namespace cairnfs::cluster
