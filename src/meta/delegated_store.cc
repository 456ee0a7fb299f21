#include "meta/delegated_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/coding.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "meta/records.h"

namespace cairnfs::meta {
namespace {

// Leaves out the compare that no other host holds a delegation: readers there would see old names.
Failpoint skip_recall("meta.skip_delegation_recall", Failpoint::Kind::kSkippable);

constexpr size_t kHomesMax = 1 << 20;
constexpr int kGuardAttemptsMax = 8;
constexpr auto kUnknownOutcomeLasts = std::chrono::minutes(10);

struct ParsedKey {
  char kind = 0;
  InodeId inode;
};

// Keys of records that delegations cover: a kind and an inode, whatever follows. kind 0: another key.
ParsedKey Parse(std::string_view key) {
  Decoder decoder(key);
  const char kind = static_cast<char>(decoder.U8());
  const InodeId inode{decoder.BigEndianU64()};
  if (!decoder.ok() || std::string_view("EITDXP").find(kind) == std::string_view::npos) return {};
  return {kind, inode};
}

InodeId HomeOf(InodeId inode, const InodeRecord& record) { return S_ISDIR(record.mode) ? inode : record.parent; }

const kv::Compare* FindRevisionCompare(const kv::Transaction& transaction, std::string_view key) {
  for (const kv::Compare& compare : transaction.compares) {
    if (compare.kind == kv::Compare::Kind::kRevisionIs && compare.key == key) return &compare;
  }
  return nullptr;
}

}  // namespace

std::string DelegationPrefix(InodeId directory) { return Encoder().U8('L').BigEndianU64(directory.value).Take(); }
std::string DelegationKey(InodeId directory, const cluster::NodeId& holder) {
  return Encoder().U8('L').BigEndianU64(directory.value).Text(holder.AsKey()).Take();
}
std::string RecallPrefix(const cluster::NodeId& holder) { return Encoder().U8('Q').Text(holder.AsKey()).Take(); }
std::string RecallKey(const cluster::NodeId& holder, InodeId directory) {
  return Encoder().U8('Q').Text(holder.AsKey()).BigEndianU64(directory.value).Take();
}

DelegatedStore::DelegatedStore(kv::SharedKvStore& store, kv::KvStore& fenced, cluster::Membership& membership,
                               const DelegationOptions& options)
    : store_(store), fenced_(fenced), membership_(membership), options_(options) {
  StartRecallWatch();
}

DelegatedStore::~DelegatedStore() { watch_.reset(); }

kv::KvLimits DelegatedStore::limits() const {
  // For each inode that a transaction writes, a compare of its I record and two of its directory's delegations are
  // added; whoever fills a transaction has three operations or more for each inode. A rename touches four directories.
  constexpr size_t kOwnCompares = 12;
  kv::KvLimits limits = fenced_.limits();
  const size_t most = limits.operations_per_transaction_max;
  limits.operations_per_transaction_max = most > 2 * kOwnCompares ? (most - kOwnCompares) / 2 : most;
  return limits;
}

DelegationStats DelegatedStore::Stats() const {
  MutexLock lock(mutex_);
  DelegationStats stats = stats_;
  for (const auto& [id, directory] : directories_) stats.held += directory.held ? 1 : 0;
  return stats;
}

// --- reading -----------------------------------------------------------------------------------------------------

Result<std::optional<kv::KvEntry>> DelegatedStore::Get(std::string_view key) {
  const kv::KvSpan span{std::string(key), {}, 0};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, Read({&span, 1}));
  if (snapshot.ranges[0].entries.empty()) return std::optional<kv::KvEntry>();
  return std::optional(std::move(snapshot.ranges[0].entries[0]));
}

Result<kv::KvRange> DelegatedStore::Range(std::string_view begin, std::string_view end, size_t limit) {
  if (end.empty()) {
    MutexLock lock(mutex_);
    stats_.read_total++;
    lock.Unlock();
    return fenced_.Range(begin, end, limit);
  }
  const kv::KvSpan span{std::string(begin), std::string(end), limit};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, Read({&span, 1}));
  return std::move(snapshot.ranges[0]);
}

Result<kv::KvSnapshot> DelegatedStore::Read(std::span<const kv::KvSpan> spans) {
  const auto session = membership_.session();
  uint64_t began = 0;
  {
    MutexLock lock(mutex_);
    if (session.ok()) {
      ForgetOldSession(session->revision);
      auto answer = AnswerFromMemory(spans, session->revision);
      // Asked after the look: then the lease lived at the look.
      if (answer && membership_.LeaseHolds()) {
        stats_.answered_total++;
        return std::move(*answer);
      }
    }
    stats_.read_total++;
    began = ++tick_;
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, fenced_.Read(spans));
  std::vector<InodeId> wanted;
  {
    MutexLock lock(mutex_);
    for (const kv::KvRange& range : snapshot.ranges) LearnHomes(range);
    Keep(spans, snapshot, began);
    if (session.ok()) wanted = CountReads(spans);
  }
  for (InodeId directory : wanted) Take(directory);
  return snapshot;
}

InodeId DelegatedStore::CoverOf(std::string_view key) const {
  const ParsedKey parsed = Parse(key);
  if (parsed.kind == 0) return {};
  if (parsed.kind == 'E') return parsed.inode;
  // T keys are asked for of every inode; only directories have one.
  auto home = homes_.find(parsed.inode.value);
  return home == homes_.end() ? InodeId{} : home->second.directory;
}

DelegatedStore::Directory* DelegatedStore::FindHeld(InodeId directory) {
  if (directory.value == 0) return nullptr;
  auto found = directories_.find(directory.value);
  return found == directories_.end() || !found->second.held ? nullptr : &found->second;
}

const kv::KvRange* DelegatedStore::FindAnswer(const Directory& directory, const kv::KvSpan& span) {
  if (span.end.empty()) {
    auto point = directory.points.find(span.begin);
    return point == directory.points.end() ? nullptr : &point->second;
  }
  auto range = directory.ranges.find({span.begin, span.end, span.limit});
  return range == directory.ranges.end() ? nullptr : &range->second;
}

std::optional<kv::KvSnapshot> DelegatedStore::AnswerFromMemory(std::span<const kv::KvSpan> spans, uint64_t session) {
  kv::KvSnapshot snapshot;
  for (const kv::KvSpan& span : spans) {
    Directory* directory = FindHeld(CoverOf(span.begin));
    if (directory == nullptr) return std::nullopt;
    if (directory->session != session) {
      Drop(*directory);
      return std::nullopt;
    }
    const kv::KvRange* answer = FindAnswer(*directory, span);
    if (answer == nullptr) return std::nullopt;
    snapshot.ranges.push_back(*answer);
    // Each holds now as it did then, so all hold at the latest of the revisions.
    snapshot.revision = std::max(snapshot.revision, answer->revision);
  }
  for (kv::KvRange& range : snapshot.ranges) range.revision = snapshot.revision;
  return snapshot;
}

// A session may have been lost because the store went back: what was learned before may never have been.
void DelegatedStore::ForgetOldSession(uint64_t session) {
  if (std::exchange(session_, session) == session) return;
  for (auto& [id, directory] : directories_) {
    Drop(directory);
    directory.rest_until = {};
  }
  homes_.clear();
}

void DelegatedStore::LearnHomes(const kv::KvRange& range) {
  for (const kv::KvEntry& entry : range.entries) {
    const ParsedKey parsed = Parse(entry.key);
    if (parsed.kind != 'I') continue;
    auto record = InodeRecord::Decode(entry.value);
    if (!record.ok()) continue;
    if (homes_.size() >= kHomesMax) MakeRoom();
    auto known = homes_.find(parsed.inode.value);
    if (known != homes_.end() && known->second.revision > entry.revision) continue;
    SetHome(parsed.inode, {HomeOf(parsed.inode, *record), entry.revision});
  }
}

// What is remembered of an inode lies with its directory, and does not move: should it come back, that would be old.
void DelegatedStore::SetHome(InodeId inode, const Home& home) {
  Home& known = homes_[inode.value];
  const InodeId before = std::exchange(known, home).directory;
  if (before == home.directory) return;
  Directory* directory = FindHeld(before);
  if (directory == nullptr) return;
  for (char kind : std::string_view("ITDXP")) {
    const std::string prefix = Encoder().U8(static_cast<uint8_t>(kind)).BigEndianU64(inode.value).Take();
    const auto begin = directory->points.lower_bound(prefix);
    const auto end = directory->points.lower_bound(kv::PrefixEnd(prefix));
    answers_ -= static_cast<size_t>(std::distance(begin, end));
    directory->points.erase(begin, end);
    answers_ -= std::erase_if(directory->ranges,
                              [&](const auto& range) { return std::get<0>(range.first).starts_with(prefix); });
  }
}

void DelegatedStore::Keep(std::span<const kv::KvSpan> spans, const kv::KvSnapshot& snapshot, uint64_t began) {
  for (size_t i = 0; i < spans.size(); i++) {
    Directory* directory = FindHeld(CoverOf(spans[i].begin));
    if (directory == nullptr || directory->valid_since > began) continue;
    if (answers_ >= options_.answers_max) MakeRoom();
    const kv::KvSpan& span = spans[i];
    const bool added =
        span.end.empty()
            ? directory->points.insert_or_assign(span.begin, snapshot.ranges[i]).second
            : directory->ranges.insert_or_assign({span.begin, span.end, span.limit}, snapshot.ranges[i]).second;
    if (added) answers_++;
  }
}

void DelegatedStore::ForgetAnswers(Directory& directory) {
  answers_ -= directory.points.size() + directory.ranges.size();
  directory.points.clear();
  directory.ranges.clear();
}

void DelegatedStore::Drop(Directory& directory) {
  ForgetAnswers(directory);
  directory.held = false;
}

// Everything that is remembered goes; what is held stays, and fills again.
void DelegatedStore::MakeRoom() {
  for (auto& [id, directory] : directories_) {
    ForgetAnswers(directory);
    directory.valid_since = ++tick_;
  }
  homes_.clear();
}

void DelegatedStore::DropKey(std::string_view key) {
  Directory* directory = FindHeld(CoverOf(key));
  if (directory == nullptr) return;
  if (auto point = directory->points.find(key); point != directory->points.end()) {
    directory->points.erase(point);
    answers_--;
  }
  // Listings of a directory, extended attributes of an inode: few of each.
  answers_ -= std::erase_if(directory->ranges, [key](const auto& range) {
    const auto& [begin, end, limit] = range.first;
    return begin <= key && key < end;
  });
}

// The directories that are read so much that a delegation pays.
std::vector<InodeId> DelegatedStore::CountReads(std::span<const kv::KvSpan> spans) {
  if (watch_ == nullptr) return {};
  std::set<InodeId> touched;
  for (const kv::KvSpan& span : spans) touched.insert(CoverOf(span.begin));
  touched.erase(InodeId{});
  std::vector<InodeId> wanted;
  const auto now = Clock::now();
  for (InodeId id : touched) {
    if (directories_.size() >= 2 * options_.directories_max) {
      std::erase_if(directories_, [](const auto& one) {
        return !one.second.held && !one.second.taking && one.second.giving_back == 0;
      });
    }
    Directory& directory = directories_[id.value];
    if (directory.held || directory.taking || directory.giving_back > 0 || now < directory.rest_until) continue;
    if (now - directory.window_begin > options_.read_window) {
      directory.window_begin = now;
      directory.reads = 0;
    }
    if (++directory.reads < options_.reads_to_take) continue;
    const auto held = std::count_if(directories_.begin(), directories_.end(),
                                    [](const auto& one) { return one.second.held || one.second.taking; });
    if (static_cast<size_t>(held) >= options_.directories_max) continue;
    directory.taking = true;
    directory.reads = 0;
    wanted.push_back(id);
  }
  return wanted;
}

// --- taking and giving back ----------------------------------------------------------------------------------------

void DelegatedStore::Take(InodeId id) {
  const auto session = membership_.session();
  uint64_t recalls = 0;
  {
    MutexLock lock(mutex_);
    recalls = directories_[id.value].recalls;
  }
  Status taken = session.ok() ? Status() : session.error();
  if (session.ok()) {
    kv::Transaction transaction;
    transaction.writes.push_back({DelegationKey(id, membership_.self()), std::string(), session->lease});
    auto committed = fenced_.Commit(transaction);
    if (!committed.ok()) taken = committed.error();
  }
  bool recalled = false;
  {
    MutexLock lock(mutex_);
    Directory& directory = directories_[id.value];
    directory.taking = false;
    recalled = directory.recalls != recalls;
    if (taken.ok() && !recalled) {
      directory.held = true;
      directory.held_since = Clock::now();
      directory.session = session->revision;
      directory.valid_since = ++tick_;
      stats_.taken_total++;
    }
  }
  // It was recalled before it was here: whoever waits saw the key.
  if (recalled) GiveBack(id);
}

void DelegatedStore::GiveBack(InodeId id) {
  {
    MutexLock lock(mutex_);
    Directory& directory = directories_[id.value];
    directory.recalls++;
    directory.giving_back++;
    const auto now = Clock::now();
    if (directory.held) {
      // One that was held for long was worth it: the rest begins small again.
      const bool soon = now - directory.held_since < 16 * options_.rest_after_recall;
      directory.rests = soon ? std::min(directory.rests + 1, 5U) : 0;
      Drop(directory);
      stats_.given_back_total++;
    }
    directory.rest_until = now + options_.rest_after_recall * (1 << directory.rests);
  }
  kv::Transaction transaction;
  transaction.Delete(DelegationKey(id, membership_.self()));
  transaction.Delete(RecallKey(membership_.self(), id));
  if (auto committed = fenced_.Commit(transaction); !committed.ok()) {
    // The key ends with the lease, and the recall with that of whoever asked.
    spdlog::warn("the delegation on directory {} could not be given back: {}", id.value, committed.error().message);
  }
  MutexLock lock(mutex_);
  directories_[id.value].giving_back--;
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
    auto pending = store_.Range(prefix, kv::PrefixEnd(prefix), 0);
    if (!pending.ok()) return;
    for (const kv::KvEntry& entry : pending->entries) answer(entry.key);
  };
  auto watch = store_.Watch(prefix, kv::PrefixEnd(prefix), 0, std::move(callbacks));
  if (watch.ok()) {
    watch_ = std::move(*watch);
  } else {
    spdlog::warn("this host takes no delegations, for it cannot hear of recalls: {}", watch.error().message);
  }
}

// --- committing ----------------------------------------------------------------------------------------------------

// Whose delegations the transaction's writes touch. Where an inode's records lie is told by its I record, which the
// commit then compares: its home may change at any time.
Result<DelegatedStore::Guards> DelegatedStore::FindGuards(const kv::Transaction& transaction) {
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
    if (write.value) {
      CAIRNFS_ASSIGN_OR_RETURN(InodeRecord record, InodeRecord::Decode(*write.value));
      note(HomeOf(parsed.inode, record));
    }
    const kv::Compare* compare = FindRevisionCompare(transaction, write.key);
    if (compare != nullptr && compare->revision == 0) homeless.insert(parsed.inode);
  }
  MutexLock lock(mutex_);
  auto add_home = [&](InodeId inode) {
    mutex_.AssertHeld();
    auto home = homes_.find(inode.value);
    const std::string key = InodeKey(inode);
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
  for (InodeId inode : unknown) spans.push_back({InodeKey(inode), {}, 0});
  stats_.read_total++;
  lock.Unlock();
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, fenced_.Read(spans));
  lock.Lock();
  for (const kv::KvRange& range : snapshot.ranges) {
    LearnHomes(range);
    // One that is gone has no home, and nobody remembers it.
    for (const kv::KvEntry& entry : range.entries) {
      CAIRNFS_ASSIGN_OR_RETURN(InodeRecord record, InodeRecord::Decode(entry.value));
      note(HomeOf(Parse(entry.key).inode, record));
      // Where the caller compares another revision, the commit fails by that.
      if (FindRevisionCompare(transaction, entry.key) == nullptr) {
        guards.inode_records.emplace_back(entry.key, entry.revision);
      }
    }
  }
  return guards;
}

void DelegatedStore::BeforeCommit(Guards& guards) {
  MutexLock lock(mutex_);
  stats_.commits_total++;
  for (InodeId id : guards.directories) {
    if (Directory* directory = FindHeld(id)) guards.ticks[id] = directory->valid_since = ++tick_;
  }
}

void DelegatedStore::AfterCommit(const kv::Transaction& transaction, const Guards& guards,
                                 const Result<uint64_t>& committed) {
  MutexLock lock(mutex_);
  // Whether nothing else was changed or taken meanwhile: then what was written is what is there.
  std::set<InodeId> undisturbed;
  for (InodeId id : guards.directories) {
    Directory* directory = FindHeld(id);
    if (directory == nullptr) continue;
    auto began = guards.ticks.find(id);
    if (began != guards.ticks.end() && began->second == directory->valid_since) undisturbed.insert(id);
    directory->valid_since = ++tick_;
  }
  for (const kv::KvWrite& write : transaction.writes) DropKey(write.key);
  if (!committed.ok()) {
    // It may run yet, and then nobody recalls what this host holds: nothing is to be remembered for as long.
    if (committed.error().code != ErrorCode::kConflict) {
      for (InodeId id : guards.directories) {
        Directory& directory = directories_[id.value];
        if (directory.held) Drop(directory);
        directory.rest_until = Clock::now() + kUnknownOutcomeLasts;
      }
    }
    for (const kv::Compare& compare : transaction.compares) DropKey(compare.key);
    for (const auto& [key, revision] : guards.inode_records) {
      if (auto home = homes_.find(Parse(key).inode.value); home != homes_.end()) home->second.doubted = true;
    }
    return;
  }
  for (const kv::KvWrite& write : transaction.writes) {
    const ParsedKey parsed = Parse(write.key);
    if (parsed.kind != 'I') continue;
    // Numbers of inodes are never used again: what is remembered of one that is gone stays true.
    if (!write.value) continue;
    auto record = InodeRecord::Decode(*write.value);
    auto known = homes_.find(parsed.inode.value);
    if (!record.ok() || (known != homes_.end() && known->second.revision > *committed)) continue;
    if (homes_.size() >= kHomesMax) MakeRoom();
    SetHome(parsed.inode, {HomeOf(parsed.inode, *record), *committed});
  }
  // What this host wrote is what it would read: nobody else could change it since, if the directory is held.
  for (const kv::KvWrite& write : transaction.writes) {
    const InodeId id = CoverOf(write.key);
    Directory* directory = FindHeld(id);
    if (directory == nullptr || !undisturbed.contains(id) || answers_ >= options_.answers_max) continue;
    kv::KvRange range;
    range.revision = *committed;
    if (write.value) range.entries.push_back({write.key, *write.value, *committed});
    if (directory->points.insert_or_assign(write.key, std::move(range)).second) answers_++;
  }
}

Result<uint64_t> DelegatedStore::Commit(const kv::Transaction& transaction) {
  const auto deadline = Clock::now() + options_.recall_wait_max;
  for (int attempt = 0;;) {
    CAIRNFS_ASSIGN_OR_RETURN(Guards guards, FindGuards(transaction));
    kv::Transaction guarded = transaction;
    for (const auto& [key, revision] : guards.inode_records) guarded.IfRevision(key, revision);
    if (!skip_recall.PassOrSkip()) {
      for (InodeId directory : guards.directories) {
        const std::string own = DelegationKey(directory, membership_.self());
        const std::string prefix = DelegationPrefix(directory);
        guarded.IfRangeEmpty(prefix, own).IfRangeEmpty(own + '\0', kv::PrefixEnd(prefix));
      }
    }
    BeforeCommit(guards);
    auto committed = fenced_.Commit(guarded);
    AfterCommit(transaction, guards, committed);
    if (committed.ok() || committed.error().code != ErrorCode::kConflict) return committed;
    CAIRNFS_ASSIGN_OR_RETURN(bool recalled, Recall(guards.directories));
    if (recalled) {
      if (Clock::now() < deadline) continue;
      return MakeError(ErrorCode::kUnavailable, "other hosts take delegations on the directory again and again");
    }
    // No delegation was in the way. It was a record: one of the caller's, or one that told a home.
    if (guards.inode_records.empty() || ++attempt == kGuardAttemptsMax) return committed;
  }
}

Result<bool> DelegatedStore::Recall(const std::set<InodeId>& directories) {
  if (directories.empty()) return false;
  std::vector<kv::KvSpan> spans;
  for (InodeId directory : directories) {
    const std::string prefix = DelegationPrefix(directory);
    spans.push_back({prefix, kv::PrefixEnd(prefix), 0});
  }
  struct Holding {
    InodeId directory;
    cluster::NodeId holder;
    uint64_t revision;  // one that is taken again after it was given back has another
  };
  auto foreign = [&](const kv::KvSnapshot& snapshot) {
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
  };
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(spans));
  const std::vector<Holding> asked = foreign(snapshot);
  if (asked.empty()) return false;

  CAIRNFS_ASSIGN_OR_RETURN(auto session, membership_.session());
  kv::Transaction ask;
  for (const auto& [directory, holder, revision] : asked) {
    ask.writes.push_back({RecallKey(holder, directory), std::string(membership_.self().AsKey()), session.lease});
  }
  // Watched from before the question, so that no answer is missed.
  struct Wake {
    Mutex mutex;
    CondVar changed;
    uint64_t changes GUARDED_BY(mutex) = 0;
  };
  auto wake = std::make_shared<Wake>();
  auto notify = [wake] {
    MutexLock lock(wake->mutex);
    wake->changes++;
    wake->changed.NotifyAll();
  };
  std::vector<std::unique_ptr<kv::KvWatch>> watches;
  for (const kv::KvSpan& span : spans) {
    kv::WatchCallbacks callbacks;
    callbacks.changed = [notify](const std::vector<kv::KvEvent>&, uint64_t) { notify(); };
    callbacks.lost = [notify](uint64_t) { notify(); };
    // Without one the wait below looks once a second.
    auto watch = store_.Watch(span.begin, span.end, snapshot.revision, std::move(callbacks));
    if (watch.ok()) watches.push_back(std::move(*watch));
  }
  if (auto committed = fenced_.Commit(ask); !committed.ok()) return committed.error();
  {
    MutexLock lock(mutex_);
    stats_.recalled_total += asked.size();
  }
  const auto deadline = Clock::now() + options_.recall_wait_max;
  for (uint64_t seen = 0;;) {
    CAIRNFS_ASSIGN_OR_RETURN(snapshot, store_.Read(spans));
    const std::vector<Holding> left = foreign(snapshot);
    auto waited_for = std::find_if(left.begin(), left.end(), [&](const Holding& holding) {
      return std::any_of(asked.begin(), asked.end(), [&](const Holding& one) {
        return one.directory == holding.directory && one.holder == holding.holder && one.revision == holding.revision;
      });
    });
    if (waited_for == left.end()) break;
    if (Clock::now() >= deadline) {
      return MakeError(ErrorCode::kUnavailable,
                       "node " + waited_for->holder.ToHex() + " does not give back its delegation on directory " +
                           std::to_string(waited_for->directory.value) + ", and its lease lives");
    }
    MutexLock lock(wake->mutex);
    // The end of a lease comes as a change too; the second is for a watch that says nothing.
    if (wake->changes == seen) static_cast<void>(wake->changed.WaitFor(wake->mutex, std::chrono::seconds(1)));
    seen = wake->changes;
  }
  // A holder that is gone does not take its recall away.
  kv::Transaction clean;
  for (const Holding& one : asked) clean.Delete(RecallKey(one.holder, one.directory));
  static_cast<void>(fenced_.Commit(clean));
  return true;
}

}  // namespace cairnfs::meta
