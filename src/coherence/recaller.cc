#include "coherence/recaller.h"

#include <algorithm>
#include <map>

#include "base/coding.h"
#include "coherence/delegation_keys.h"

namespace cairnfs::coherence {
namespace {

constexpr size_t kKeysPerRead = 64;  // of recalls
constexpr std::chrono::milliseconds kLookAgainAfter{1000};

}  // namespace

// That watches told of.
struct Recaller::Changes {
  Mutex mutex;
  CondVar changed;
  uint64_t count GUARDED_BY(mutex) = 0;
};

std::vector<Recaller::Holding> Recaller::HeldByOthers(const kv::KvSnapshot& snapshot) const {
  std::vector<Holding> holdings;
  for (const kv::KvRange& range : snapshot.ranges) {
    for (const kv::KvEntry& entry : range.entries) {
      Decoder decoder(entry.key);
      decoder.U8();
      const InodeId directory{decoder.BigEndianU64()};
      auto holder = cluster::NodeId::FromKey(decoder.Rest());
      if (holder && *holder != membership_.self()) holdings.push_back({directory, *holder, entry.revision});
    }
  }
  return holdings;
}

std::vector<std::unique_ptr<kv::KvWatch>> Recaller::WatchChanges(const Context& context,
                                                                 const std::vector<kv::KvSpan>& spans,
                                                                 uint64_t revision,
                                                                 const std::shared_ptr<Changes>& changes) {
  auto notify = [changes] {
    MutexLock lock(changes->mutex);
    changes->count++;
    changes->changed.NotifyAll();
  };
  std::vector<std::unique_ptr<kv::KvWatch>> watches;
  for (const kv::KvSpan& span : spans) {
    kv::WatchCallbacks callbacks;
    callbacks.changed = [notify](const std::vector<kv::KvEvent>&, uint64_t) { notify(); };
    callbacks.lost = [notify](uint64_t) { notify(); };
    // Without one WaitUntilGivenBack looks once a second.
    auto watch = store_.Watch(context, span.begin, span.end, revision, std::move(callbacks));
    if (watch.ok()) watches.push_back(std::move(*watch));
  }
  return watches;
}

Status Recaller::AskFor(const Context& context, std::span<Holding> asked) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto session,
                           membership_.WaitForSession(context.WithTimeout(options_.recall_wait_max)));
  // Of 128 hosts that hold the directory a store may take no more recalls at once than of 127.
  const size_t keys_max = std::max<size_t>(fenced_.limits().operations_per_transaction_max, 1);
  for (size_t first = 0; first < asked.size(); first += keys_max) {
    const size_t last = std::min(first + keys_max, asked.size());
    kv::Transaction ask;
    for (size_t i = first; i < last; i++) {
      const Holding& one = asked[i];
      ask.writes.push_back(
          {RecallKey(one.holder, one.directory), std::string(membership_.self().AsKey()), session.lease});
    }
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, fenced_.Commit(context, ask));
    for (size_t i = first; i < last; i++) asked[i].recall_revision = revision;
  }
  return {};
}

// A holder that is gone does not take its recall away. One that is not this call's own is left: who asks for a
// delegation that was taken again waits for what that recall does.
void Recaller::TakeRecallsBack(const Context& context, const std::vector<Holding>& asked) {
  std::map<std::string, uint64_t> own;
  for (const Holding& one : asked) own[RecallKey(one.holder, one.directory)] = one.recall_revision;
  std::vector<std::string> keys;
  keys.reserve(own.size());
  for (const auto& [key, revision] : own) keys.push_back(key);
  auto take_back = [&](size_t, const kv::KvEntry* entry) -> Status {
    if (entry == nullptr || entry->revision != own[entry->key]) return {};
    kv::Transaction transaction;
    transaction.IfRevision(entry->key, entry->revision).Delete(entry->key);
    // What cannot be taken back ends with this host's session.
    static_cast<void>(fenced_.Commit(context, transaction));
    return {};
  };
  static_cast<void>(kv::ReadKeys(context, store_, keys, kKeysPerRead, take_back));
}

Status Recaller::WaitUntilGivenBack(const Context& context, const std::vector<kv::KvSpan>& spans,
                                    std::vector<Holding>& asked, Changes& changes) {
  const Context waiting = context.WithTimeout(options_.recall_wait_max);
  auto ask_again_at = Clock::Now() + options_.ask_again_after;
  for (uint64_t seen = 0;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, store_.Read(context, spans));
    const std::vector<Holding> there = HeldByOthers(snapshot);
    const auto given_back = std::partition(asked.begin(), asked.end(), [&](const Holding& one) {
      return std::any_of(there.begin(), there.end(), [&](const Holding& holding) {
        return one.directory == holding.directory && one.holder == holding.holder && one.revision == holding.revision;
      });
    });
    const std::span<Holding> left(asked.begin(), given_back);
    if (left.empty()) return {};
    if (waiting.Expired()) {
      return MakeError(ErrorCode::kUnavailable,
                       "node " + left.front().holder.ToHex() + " does not give back its delegation on directory " +
                           std::to_string(left.front().directory.value) + ", and its lease lives");
    }
    // A holder may miss a recall, or fail to answer it.
    if (Clock::Now() >= ask_again_at) {
      CAIRNFS_RETURN_IF_ERROR(AskFor(context, left));
      ask_again_at = Clock::Now() + options_.ask_again_after;
    }
    // The end of a lease comes as a change too; the second is for a watch that says nothing.
    const Context until_next_look = waiting.WithTimeout(std::min(kLookAgainAfter, options_.ask_again_after));
    MutexLock lock(changes.mutex);
    until_next_look.Wait(changes.mutex, changes.changed, [&] {
      changes.mutex.AssertHeld();
      return changes.count != seen;
    });
    seen = changes.count;
  }
}

Result<bool> Recaller::Recall(const Context& context, const std::set<InodeId>& directories) {
  if (directories.empty()) return false;
  std::vector<kv::KvSpan> spans;
  for (InodeId directory : directories) {
    const std::string prefix = DelegationPrefix(directory);
    spans.push_back({prefix, kv::PrefixEnd(prefix), 0});
  }
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, store_.Read(context, spans));
  std::vector<Holding> asked = HeldByOthers(snapshot);
  if (asked.empty()) return false;

  // Watched from before the question, so that no answer is missed.
  auto changes = std::make_shared<Changes>();
  const auto watches = WatchChanges(context, spans, snapshot.revision, changes);
  CAIRNFS_RETURN_IF_ERROR(AskFor(context, asked));
  recalled_total_ += asked.size();
  CAIRNFS_RETURN_IF_ERROR(WaitUntilGivenBack(context, spans, asked, *changes));
  TakeRecallsBack(context, asked);
  return true;
}

}  // namespace cairnfs::coherence
