// The part of DelegatedStore that takes delegations, gives them back when they are recalled, and recalls those of
// others.
#include <sys/stat.h>

#include <algorithm>
#include <cassert>

#include "base/clock.h"
#include "base/coding.h"
#include "base/log.h"
#include "coherence/delegated_store.h"
#include "meta/records.h"

namespace cairnfs::coherence {
namespace {

constexpr size_t kNamesAtOnceMax = 4096;  // a directory with more is not read whole
constexpr size_t kKeysPerRead = 64;       // of recalls
constexpr std::chrono::milliseconds kLookAgainAfter{1000};

}  // namespace

void DelegatedStore::Take(const Context& context, InodeId id, const cluster::Membership::Session& session) {
  {
    // A recall may have come since it was wanted, of a key that was there before: the deletion that answers it may take
    // away one that is put now.
    MutexLock lock(mutex_);
    Directory& directory = directories_[id.value];
    assert(directory.taking);
    if (directory.recalls != directory.recalls_before) {
      directory.taking = false;
      taking_--;
      return;
    }
  }
  kv::Transaction transaction;
  transaction.writes.push_back({DelegationKey(id, membership_.self()), std::string(), session.lease});
  const auto taken = fenced_.Commit(context, transaction);
  bool recalled = false, held = false;
  {
    MutexLock lock(mutex_);
    Directory& directory = directories_[id.value];
    directory.taking = false;
    taking_--;
    recalled = directory.recalls != directory.recalls_before;
    // Under a session that is over by now the key is, or will be, gone.
    held = taken.ok() && !recalled && session_ == session.number;
    if (held) {
      directory.held = true;
      held_++;
      directory.held_since = Clock::Now();
      directory.held_from = directory.valid_since = directory.generation = ++tick_;
    }
  }
  // It was recalled before it was here: whoever waits saw the key.
  if (recalled) GiveBack(id);
  if (held) ReadNames(context, id);
}

// With all names at hand those that are not there need no look: each name that is made is looked up before.
void DelegatedStore::ReadNames(const Context& context, InodeId id) {
  const std::string prefix = meta::DentryPrefix(id), end = kv::PrefixEnd(prefix);
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    Directory* directory = FindHeld(id);
    if (directory == nullptr) return;
    stats_.read_total++;
    generation = directory->generation;
    directory->reading_names = true;
    // What is written meanwhile the answer may show or not.
    for (auto flight = flights_.lower_bound(prefix); flight != flights_.end() && flight->first < end; ++flight) {
      directory->unsure_names.insert(flight->first);
    }
  }
  auto names = fenced_.Range(context, prefix, end, kNamesAtOnceMax);
  MutexLock lock(mutex_);
  Directory* directory = FindHeld(id);
  if (directory == nullptr || directory->generation != generation || !directory->reading_names) return;
  directory->reading_names = false;
  if (!names.ok() || names->more || answers_ + names->entries.size() >= options_.answers_max) return;
  for (kv::KvEntry& entry : names->entries) {
    // What was learned of a name meanwhile is newer.
    if (directory->unsure_names.contains(entry.key) || directory->points.contains(entry.key)) continue;
    kv::KvRange name;
    name.revision = names->revision;
    std::string key = entry.key;
    name.entries.push_back(std::move(entry));
    Remember(*directory, {std::move(key), {}, 0}, std::move(name));
  }
  directory->all_names_at = names->revision;
}

void DelegatedStore::GiveBack(InodeId id) {
  {
    MutexLock lock(mutex_);
    Directory& directory = directories_[id.value];
    directory.recalls++;
    directory.giving_back++;
    const auto now = Clock::Now();
    if (directory.held) {
      // One that was held for long was worth it: the rest begins small again.
      const bool soon = now - directory.held_since < 16 * options_.rest_after_recall;
      directory.rests = soon ? std::min(directory.rests + 1, 5U) : 0;
      Drop(directory);
    }
    // It may rest already, for a commit whose outcome is unknown.
    directory.rest_until = std::max(directory.rest_until, now + options_.rest_after_recall * (1 << directory.rests));
  }
  kv::Transaction transaction;
  transaction.Delete(DelegationKey(id, membership_.self()));
  transaction.Delete(RecallKey(membership_.self(), id));
  bool may_run_yet = false;
  // Whoever waits for it is on another host: a caller of this one that is killed does not end it.
  if (auto committed = fenced_.Commit(context_, transaction); !committed.ok()) {
    may_run_yet = kv::MayHaveRun(committed.error().code);
    // The key ends with the lease, and the recall with that of whoever asked.
    spdlog::warn("the delegation on directory {} could not be given back: {}", id.value, committed.error().message);
  }
  MutexLock lock(mutex_);
  Directory& directory = directories_[id.value];
  directory.giving_back--;
  // It would take away a delegation that is taken now.
  if (may_run_yet) directory.rest_until = Clock::Now() + kUnknownOutcomeLasts;
}

void DelegatedStore::StartRecallWatch() {
  const std::string prefix = RecallPrefix(membership_.self());
  auto answer = [this, prefix](std::string_view key) {
    Decoder decoder(key.substr(prefix.size()));
    const InodeId directory{decoder.BigEndianU64()};
    if (decoder.Finished()) GiveBack(directory);
  };
  kv::WatchCallbacks callbacks;
  callbacks.changed = [answer](const std::vector<kv::KvEvent>& events, uint64_t) {
    for (const kv::KvEvent& event : events) {
      if (event.value) answer(event.key);
    }
  };
  callbacks.lost = [this, prefix, answer](uint64_t) {
    auto pending = store_.Range(context_, prefix, kv::PrefixEnd(prefix), 0);
    if (!pending.ok()) return;  // who waits asks again
    for (const kv::KvEntry& entry : pending->entries) answer(entry.key);
  };
  auto watch = store_.Watch(context_, prefix, kv::PrefixEnd(prefix), 0, std::move(callbacks));
  if (watch.ok()) {
    watch_ = std::move(*watch);
  } else {
    spdlog::warn("this host takes no delegations, for it cannot hear of recalls: {}", watch.error().message);
  }
}

std::vector<DelegatedStore::Holding> DelegatedStore::HeldByOthers(const kv::KvSnapshot& snapshot) const {
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

std::vector<std::unique_ptr<kv::KvWatch>> DelegatedStore::WatchChanges(const Context& context,
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

Status DelegatedStore::AskFor(const Context& context, std::span<Holding> asked) {
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
void DelegatedStore::TakeRecallsBack(const Context& context, const std::vector<Holding>& asked) {
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

Status DelegatedStore::WaitUntilGivenBack(const Context& context, const std::vector<kv::KvSpan>& spans,
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

Result<bool> DelegatedStore::Recall(const Context& context, const std::set<InodeId>& directories) {
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
  {
    MutexLock lock(mutex_);
    stats_.recalled_total += asked.size();
  }
  CAIRNFS_RETURN_IF_ERROR(WaitUntilGivenBack(context, spans, asked, *changes));
  TakeRecallsBack(context, asked);
  return true;
}

}  // namespace cairnfs::coherence
