// The part of DelegatedStore that takes delegations, and gives them back when they are recalled.
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

}  // namespace cairnfs::coherence
