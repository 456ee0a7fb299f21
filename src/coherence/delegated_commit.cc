// The part of DelegatedStore that commits: what a commit compares so that nobody remembers what it changes, and what
// this host knows after it.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/failpoint.h"
#include "coherence/covered_keys.h"
#include "coherence/delegated_store.h"

namespace cairnfs::coherence {
namespace {

// Leaves out the compare that no other host holds a delegation: readers there would see old names.
Failpoint skip_recall("meta.skip_delegation_recall", Failpoint::Kind::kSkippable);

constexpr int kGuardAttemptsMax = 8;

// The range as it is after the write to a key in it.
void ApplyTo(kv::KvRange& range, const kv::KvWrite& write, uint64_t revision) {
  auto at = std::lower_bound(range.entries.begin(), range.entries.end(), write.key,
                             [](const kv::KvEntry& entry, const std::string& key) { return entry.key < key; });
  const bool is_there = at != range.entries.end() && at->key == write.key;
  if (!write.value) {
    if (is_there) range.entries.erase(at);
  } else if (is_there) {
    *at = {write.key, *write.value, revision};
  } else {
    range.entries.insert(at, {write.key, *write.value, revision});
  }
  range.revision = revision;
}

const kv::Compare* FindRevisionCompare(const kv::Transaction& transaction, std::string_view key) {
  for (const kv::Compare& compare : transaction.compares) {
    if (compare.kind == kv::Compare::Kind::kRevisionIs && compare.key == key) return &compare;
  }
  return nullptr;
}

}  // namespace

// Whose delegations the transaction's writes touch. Where an inode's records lie is told by its I record, which the
// commit then compares: its home may change at any time.
Result<DelegatedStore::Guards> DelegatedStore::FindGuards(const Context& context, const kv::Transaction& transaction) {
  Guards guards;
  std::set<InodeId> unknown;
  std::set<InodeId> homeless;  // made by this transaction, or whose home is in it
  auto note = [&](InodeId directory) {
    if (directory.value != 0) guards.directories.insert(directory);
  };
  for (const kv::KvWrite& write : transaction.writes) {
    const ParsedKey parsed = Parse(write.key);
    if (parsed.kind == 'E' || parsed.kind == 'T') note(parsed.inode);
    if (parsed.kind != 'I') continue;
    const kv::Compare* compare = FindRevisionCompare(transaction, write.key);
    const bool is_new = compare != nullptr && compare->revision == 0;
    if (is_new) homeless.insert(parsed.inode);
    // Numbers of inodes are never used again: what is remembered of one that is gone stays true.
    if (!write.value) continue;
    CAIRNFS_ASSIGN_OR_RETURN(meta::InodeRecord record, meta::InodeRecord::Decode(*write.value));
    note(HomeOf(parsed.inode, record));
    guards.written.push_back({parsed.inode, HomeOf(parsed.inode, record), is_new});
  }
  MutexLock lock(mutex_);
  auto add_home = [&](InodeId inode) {
    mutex_.AssertHeld();
    auto home = homes_.find(inode.value);
    const std::string key = meta::InodeKey(inode);
    const kv::Compare* compare = FindRevisionCompare(transaction, key);
    if (home == homes_.end() || home->second.doubted ||
        (compare != nullptr && compare->revision != home->second.revision))
      return false;
    note(home->second.directory);
    if (compare == nullptr) guards.inode_records.emplace_back(key, home->second.revision);
    return true;
  };
  std::set<InodeId> seen;
  for (const kv::KvWrite& write : transaction.writes) {
    const ParsedKey parsed = Parse(write.key);
    if (parsed.kind == 0 || parsed.kind == 'E' || parsed.kind == 'T') continue;
    if (homeless.contains(parsed.inode) || !seen.insert(parsed.inode).second) continue;
    if (!add_home(parsed.inode)) unknown.insert(parsed.inode);
  }
  if (unknown.empty()) return guards;
  std::vector<kv::KvSpan> spans;
  spans.reserve(unknown.size());
  for (InodeId inode : unknown) spans.push_back({meta::InodeKey(inode), {}, 0});
  stats_.read_total++;
  const uint64_t began = ++tick_;
  lock.Unlock();
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, fenced_.Read(context, spans));
  lock.Lock();
  for (const kv::KvRange& range : snapshot.ranges) {
    LearnHomes(range, began);
    // One that is gone has no home, and nobody remembers it.
    for (const kv::KvEntry& entry : range.entries) {
      CAIRNFS_ASSIGN_OR_RETURN(meta::InodeRecord record, meta::InodeRecord::Decode(entry.value));
      note(HomeOf(Parse(entry.key).inode, record));
      // Where the caller compares another revision, the commit fails by that.
      if (FindRevisionCompare(transaction, entry.key) == nullptr) {
        guards.inode_records.emplace_back(entry.key, entry.revision);
      }
    }
  }
  return guards;
}

// From now on until the answer is here nobody knows what the keys hold: others may see the new values already.
void DelegatedStore::BeforeCommit(const kv::Transaction& transaction, Guards& guards) {
  MutexLock lock(mutex_);
  stats_.commits_total++;
  guards.began = ++tick_;
  guards.may_be_old = unknown_operations_.contains(transaction.operation_id);
  for (InodeId id : guards.directories) {
    if (Directory* directory = FindHeld(id)) guards.generations[id] = directory->generation;
  }
  for (const kv::KvWrite& write : transaction.writes) {
    if (Parse(write.key).kind == 0) continue;
    Flight& flight = flights_[write.key];
    flight.is_shared |= flight.commits > 0;
    flight.commits++;
  }
}

void DelegatedStore::AfterCommit(const kv::Transaction& transaction, const Guards& guards,
                                 const Result<uint64_t>& committed) {
  MutexLock lock(mutex_);
  std::set<const kv::KvWrite*> last;  // those that nobody else wrote at the same time
  for (const kv::KvWrite& write : transaction.writes) {
    auto flight = flights_.find(write.key);
    if (flight == flights_.end()) continue;
    if (!flight->second.is_shared) last.insert(&write);
    if (--flight->second.commits == 0) flights_.erase(flight);
  }
  for (InodeId id : guards.directories) {
    if (Directory* directory = FindHeld(id)) directory->valid_since = ++tick_;
  }
  if (!committed.ok()) return AfterFailure(transaction, guards, committed.error());
  unknown_operations_.erase(transaction.operation_id);
  if (guards.may_be_old) return Forget(transaction, guards);
  // What this host wrote is what it would read, where it held the directory all the time. Told before homes move, which
  // begins a new generation for whoever else is on the way.
  std::set<InodeId> sure;
  for (const auto& [id, generation] : guards.generations) {
    const Directory* directory = FindHeld(id);
    if (directory != nullptr && directory->generation == generation) sure.insert(id);
  }
  auto find_sure = [&](InodeId id) -> Directory* {
    mutex_.AssertHeld();
    return sure.contains(id) && answers_ < options_.answers_max ? FindHeld(id) : nullptr;
  };
  auto drop_unless_sure = [&](const kv::KvWrite& write) -> Directory* {
    mutex_.AssertHeld();
    Directory* directory = last.contains(&write) ? find_sure(CoverOf(write.key)) : nullptr;
    if (directory == nullptr) DropKey(write.key);
    return directory;
  };
  for (const auto& [key, revision] : guards.inode_records) {
    auto home = homes_.find(Parse(key).inode.value);
    if (home == homes_.end() || home->second.revision != revision) continue;
    home->second.known_at = std::max(home->second.known_at, guards.began);  // it was compared
  }
  // Where an inode lay before the commit, and where it lies now.
  for (const kv::KvWrite& write : transaction.writes) drop_unless_sure(write);
  for (const Guards::Written& written : guards.written) {
    const auto home = homes_.find(written.inode.value);
    const bool stays_covered = home != homes_.end() && sure.contains(home->second.directory);
    Answers moved = SetHome(written.inode, {written.home, *committed, guards.began});
    Directory* now = stays_covered ? find_sure(written.home) : nullptr;
    if (now == nullptr) continue;
    // Nobody else could change it, neither before the move nor since.
    for (auto& [key, answer] : moved.points) Remember(*now, {key, {}, 0}, std::move(answer));
    for (auto& [span, answer] : moved.ranges) {
      Remember(*now, {std::get<0>(span), std::get<1>(span), std::get<2>(span)}, std::move(answer));
    }
  }
  for (const kv::KvWrite& write : transaction.writes) {
    if (Directory* directory = drop_unless_sure(write)) Apply(*directory, write, *committed);
  }
  for (const Guards::Written& written : guards.written) {
    if (!written.is_new) continue;
    if (Directory* directory = find_sure(written.home)) RememberNew(*directory, written.inode, *committed);
  }
}

// What was written is what would be read: nobody else could change it since.
void DelegatedStore::Apply(Directory& directory, const kv::KvWrite& write, uint64_t revision) {
  kv::KvRange answer;
  answer.revision = revision;
  if (write.value) answer.entries.push_back({write.key, *write.value, revision});
  auto [range, last] = RangesNear(directory.ranges, write.key);
  while (range != last) {
    if (!IsIn(range->first, write.key)) {
      ++range;
    } else if (std::get<size_t>(range->first) != 0) {
      range = directory.ranges.erase(range);  // where its limit cuts it off now is not known
      answers_--;
    } else {
      ApplyTo(range->second, write, revision);
      ++range;
    }
  }
  Remember(directory, {write.key, {}, 0}, std::move(answer));
}

// A new inode has what the transaction gave it, and nothing else.
void DelegatedStore::RememberNew(Directory& directory, InodeId inode, uint64_t revision) {
  kv::KvRange nothing;
  nothing.revision = revision;
  for (const std::string& key : {meta::FileKey(inode), meta::DirectoryTimesKey(inode)}) {
    if (!directory.points.contains(key)) Remember(directory, {key, {}, 0}, nothing);
  }
}

// What the commit looked at, or may have changed, is asked for again.
void DelegatedStore::Forget(const kv::Transaction& transaction, const Guards& guards) {
  auto doubt = [this](InodeId inode) {
    mutex_.AssertHeld();
    if (auto home = homes_.find(inode.value); home != homes_.end()) home->second.doubted = true;
  };
  for (const kv::KvWrite& write : transaction.writes) DropKey(write.key);
  for (const kv::Compare& compare : transaction.compares) DropKey(compare.key);
  for (const auto& [key, revision] : guards.inode_records) doubt(Parse(key).inode);
  for (const Guards::Written& written : guards.written) doubt(written.inode);
}

void DelegatedStore::AfterFailure(const kv::Transaction& transaction, const Guards& guards, const Error& error) {
  Forget(transaction, guards);
  unknown_operations_.erase(transaction.operation_id);
  if (!kv::MayHaveRun(error.code)) return;
  if (!transaction.operation_id.empty()) unknown_operations_.insert(transaction.operation_id);
  // It may run yet, and then nobody recalls what this host holds: nothing is to be remembered for as long.
  for (InodeId id : guards.directories) {
    Directory& directory = directories_[id.value];
    if (directory.held) Drop(directory);
    directory.recalls++;  // one that is being taken is given back
    directory.rest_until = Clock::Now() + kUnknownOutcomeLasts;
  }
}

Result<uint64_t> DelegatedStore::Commit(const Context& context, const kv::Transaction& transaction) {
  const Context recalling = context.WithTimeout(options_.recall_wait_max);
  std::optional<Error> conflict;
  std::vector<std::pair<std::string, uint64_t>> compared;
  for (int attempt = 0;;) {
    CAIRNFS_ASSIGN_OR_RETURN(Guards guards, FindGuards(context, transaction));
    // What told a home has not changed, so it was a compare of the caller's.
    if (conflict && guards.inode_records == compared) return *conflict;
    kv::Transaction guarded = transaction;
    for (const auto& [key, revision] : guards.inode_records) guarded.IfRevision(key, revision);
    if (!skip_recall.PassOrSkip()) {
      for (InodeId directory : guards.directories) {
        const std::string own = DelegationKey(directory, membership_.self());
        const std::string prefix = DelegationPrefix(directory);
        guarded.IfRangeEmpty(prefix, own).IfRangeEmpty(own + '\0', kv::PrefixEnd(prefix));
      }
    }
    BeforeCommit(transaction, guards);
    auto committed = fenced_.Commit(context, guarded);
    AfterCommit(transaction, guards, committed);
    if (committed.ok() || committed.error().code != ErrorCode::kConflict) return committed;
    CAIRNFS_ASSIGN_OR_RETURN(bool recalled, recaller_.Recall(context, guards.directories));
    conflict.reset();
    if (recalled) {
      if (!recalling.Expired()) continue;
      return MakeError(ErrorCode::kUnavailable, "other hosts take delegations on the directory again and again");
    }
    // No delegation was in the way. It was a record: one of the caller's, or one that told a home.
    if (guards.inode_records.empty() || ++attempt == kGuardAttemptsMax) return committed;
    conflict = committed.error();
    compared = std::move(guards.inode_records);
  }
}

}  // namespace cairnfs::coherence
