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
constexpr size_t kUnsureNamesMax = 1024;  // of a directory; beyond them its names are not known
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

bool IsIn(const std::tuple<std::string, std::string, size_t>& span, std::string_view key) {
  return std::get<0>(span) <= key && key < std::get<1>(span);
}

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
  stats.held = held_;
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
      ForgetOldSession(*session);
      auto answer = AnswerFromMemory(spans);
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
  for (InodeId directory : wanted) Take(directory, *session);
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

std::optional<kv::KvRange> DelegatedStore::FindAnswer(const Directory& directory, const kv::KvSpan& span) {
  if (!span.end.empty()) {
    auto range = directory.ranges.find({span.begin, span.end, span.limit});
    return range == directory.ranges.end() ? std::nullopt : std::optional(range->second);
  }
  auto point = directory.points.find(span.begin);
  if (point != directory.points.end()) return point->second;
  if (directory.all_names_at == 0 || Parse(span.begin).kind != 'E') return std::nullopt;
  if (directory.unsure_names.contains(span.begin)) return std::nullopt;
  kv::KvRange absent;
  absent.revision = directory.all_names_at;
  return absent;
}

std::optional<kv::KvSnapshot> DelegatedStore::AnswerFromMemory(std::span<const kv::KvSpan> spans) {
  kv::KvSnapshot snapshot;
  for (const kv::KvSpan& span : spans) {
    Directory* directory = FindHeld(CoverOf(span.begin));
    if (directory == nullptr || IsInFlight(span)) return std::nullopt;
    std::optional<kv::KvRange> answer = FindAnswer(*directory, span);
    if (!answer) return std::nullopt;
    // Each holds now as it did then, so all hold at the latest of the revisions.
    snapshot.revision = std::max(snapshot.revision, answer->revision);
    snapshot.ranges.push_back(std::move(*answer));
  }
  for (kv::KvRange& range : snapshot.ranges) range.revision = snapshot.revision;
  return snapshot;
}

// A session may have been lost because the store went back: what was learned before may never have been.
void DelegatedStore::ForgetOldSession(const cluster::Membership::Session& session) {
  if (session.number <= session_) return;
  session_ = session.number;
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
    SetHome(parsed.inode, {HomeOf(parsed.inode, *record), entry.revision});
  }
}

// What is remembered of an inode lies with its directory, and does not move: should it come back, that would be old.
void DelegatedStore::SetHome(InodeId inode, const Home& home) {
  if (homes_.size() >= kHomesMax) MakeRoom();
  Home& known = homes_[inode.value];
  if (known.revision > home.revision) return;
  const InodeId before = std::exchange(known, home).directory;
  if (before == home.directory || before.value == 0) return;
  if (Directory* now = FindHeld(home.directory)) now->generation = ++tick_;
  Directory* directory = FindHeld(before);
  if (directory == nullptr) return;
  directory->generation = ++tick_;
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
    if (directory == nullptr || directory->valid_since > began || IsInFlight(spans[i])) continue;
    if (answers_ >= options_.answers_max) MakeRoom();
    Remember(*directory, spans[i], snapshot.ranges[i]);
  }
}

bool DelegatedStore::IsInFlight(const kv::KvSpan& span) const {
  if (span.end.empty()) return flights_.contains(span.begin);
  const auto first = flights_.lower_bound(span.begin);
  return first != flights_.end() && first->first < span.end;
}

void DelegatedStore::Remember(Directory& directory, const kv::KvSpan& span, kv::KvRange answer) {
  directory.unsure_names.erase(span.begin);
  const bool added =
      span.end.empty()
          ? directory.points.insert_or_assign(span.begin, std::move(answer)).second
          : directory.ranges.insert_or_assign({span.begin, span.end, span.limit}, std::move(answer)).second;
  if (added) answers_++;
}

void DelegatedStore::ForgetAnswers(Directory& directory) {
  answers_ -= directory.points.size() + directory.ranges.size();
  directory.points.clear();
  directory.ranges.clear();
  directory.all_names_at = 0;
  directory.reading_names = false;
  directory.unsure_names.clear();
}

void DelegatedStore::Drop(Directory& directory) {
  ForgetAnswers(directory);
  if (std::exchange(directory.held, false)) held_--;
}

// Everything that is remembered goes; what is held stays, and fills again.
void DelegatedStore::MakeRoom() {
  for (auto& [id, directory] : directories_) {
    ForgetAnswers(directory);
    directory.valid_since = directory.generation = ++tick_;
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
  if (Parse(key).kind == 'E' && (directory->all_names_at != 0 || directory->reading_names)) {
    directory->unsure_names.emplace(key);
    if (directory->unsure_names.size() > kUnsureNamesMax) {
      directory->all_names_at = 0;
      directory->reading_names = false;
      directory->unsure_names.clear();
    }
  }
  // Listings of a directory, extended attributes of an inode: few of each.
  answers_ -= std::erase_if(directory->ranges, [key](const auto& range) { return IsIn(range.first, key); });
}

// What was written is what would be read: nobody else could change it since.
void DelegatedStore::Apply(Directory& directory, const kv::KvWrite& write, uint64_t revision) {
  kv::KvRange answer;
  answer.revision = revision;
  if (write.value) answer.entries.push_back({write.key, *write.value, revision});
  for (auto range = directory.ranges.begin(); range != directory.ranges.end();) {
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
    if (held_ + taking_ >= options_.directories_max) continue;
    directory.taking = true;
    taking_++;
    directory.reads = 0;
    wanted.push_back(id);
  }
  return wanted;
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
    const kv::Compare* compare = FindRevisionCompare(transaction, write.key);
    const bool is_new = compare != nullptr && compare->revision == 0;
    if (is_new) homeless.insert(parsed.inode);
    // Numbers of inodes are never used again: what is remembered of one that is gone stays true.
    if (!write.value) continue;
    CAIRNFS_ASSIGN_OR_RETURN(InodeRecord record, InodeRecord::Decode(*write.value));
    note(HomeOf(parsed.inode, record));
    guards.written.push_back({parsed.inode, HomeOf(parsed.inode, record), is_new});
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

// From now on until the answer is here nobody knows what the keys hold: others may see the new values already.
void DelegatedStore::BeforeCommit(const kv::Transaction& transaction, Guards& guards) {
  MutexLock lock(mutex_);
  stats_.commits_total++;
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
  // What this host wrote is what it would read, where it held the directory all the time.
  auto find_sure = [&](InodeId id) -> Directory* {
    mutex_.AssertHeld();
    Directory* directory = FindHeld(id);
    auto before = guards.generations.find(id);
    const bool is_sure = directory != nullptr && before != guards.generations.end() &&
                         before->second == directory->generation && answers_ < options_.answers_max;
    return is_sure ? directory : nullptr;
  };
  auto drop_unless_sure = [&](const kv::KvWrite& write) -> Directory* {
    mutex_.AssertHeld();
    Directory* directory = last.contains(&write) ? find_sure(CoverOf(write.key)) : nullptr;
    if (directory == nullptr) DropKey(write.key);
    return directory;
  };
  // Where an inode lay before the commit, and where it lies now.
  for (const kv::KvWrite& write : transaction.writes) drop_unless_sure(write);
  for (const Guards::Written& written : guards.written) SetHome(written.inode, {written.home, *committed});
  for (const kv::KvWrite& write : transaction.writes) {
    if (Directory* directory = drop_unless_sure(write)) Apply(*directory, write, *committed);
  }
  for (const Guards::Written& written : guards.written) {
    if (!written.is_new) continue;
    if (Directory* directory = find_sure(written.home)) RememberNew(*directory, written.inode, *committed);
  }
}

// A new inode has what the transaction gave it, and nothing else.
void DelegatedStore::RememberNew(Directory& directory, InodeId inode, uint64_t revision) {
  kv::KvRange nothing;
  nothing.revision = revision;
  for (const std::string& key : {FileKey(inode), DirectoryTimesKey(inode)}) {
    if (!directory.points.contains(key)) Remember(directory, {key, {}, 0}, nothing);
  }
  const std::string pending = PendingPrefix(inode);
  Remember(directory, {pending, kv::PrefixEnd(pending), 0}, nothing);
}

void DelegatedStore::AfterFailure(const kv::Transaction& transaction, const Guards& guards, const Error& error) {
  for (const kv::KvWrite& write : transaction.writes) DropKey(write.key);
  for (const kv::Compare& compare : transaction.compares) DropKey(compare.key);
  for (const auto& [key, revision] : guards.inode_records) {
    if (auto home = homes_.find(Parse(key).inode.value); home != homes_.end()) home->second.doubted = true;
  }
  if (!kv::MayHaveRun(error.code)) return;
  // It may run yet, and then nobody recalls what this host holds: nothing is to be remembered for as long.
  for (InodeId id : guards.directories) {
    Directory& directory = directories_[id.value];
    if (directory.held) Drop(directory);
    directory.rest_until = Clock::now() + kUnknownOutcomeLasts;
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
    BeforeCommit(transaction, guards);
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

}  // namespace cairnfs::meta
