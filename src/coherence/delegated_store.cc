#include "coherence/delegated_store.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/coding.h"
#include "coherence/covered_keys.h"
#include "meta/records.h"

namespace cairnfs::coherence {
namespace {

constexpr size_t kHomesMax = 1 << 20;
constexpr size_t kUnsureNamesMax = 1024;  // of a directory; beyond them its names are not known

}  // namespace

DelegatedStore::DelegatedStore(kv::SharedKvStore& store, kv::KvStore& fenced, cluster::Membership& membership,
                               const DelegationOptions& options)
    : store_(store),
      fenced_(fenced),
      membership_(membership),
      options_(options),
      recaller_(store, fenced, membership, {options.recall_wait_max, options.ask_again_after}) {
  StartRecallWatch();
}

DelegatedStore::~DelegatedStore() {
  stop_.request_stop();
  watch_.reset();
}

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
  stats.recalled_total = recaller_.recalled_total();
  return stats;
}

// --- reading -----------------------------------------------------------------------------------------------------

Result<std::optional<kv::KvEntry>> DelegatedStore::Get(const Context& context, std::string_view key) {
  const kv::KvSpan span{std::string(key), {}, 0};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, Read(context, {&span, 1}));
  if (snapshot.ranges[0].entries.empty()) return std::optional<kv::KvEntry>();
  return std::optional(std::move(snapshot.ranges[0].entries[0]));
}

Result<kv::KvRange> DelegatedStore::Range(const Context& context, std::string_view begin, std::string_view end,
                                          size_t limit) {
  if (end.empty()) {
    MutexLock lock(mutex_);
    stats_.read_total++;
    lock.Unlock();
    return fenced_.Range(context, begin, end, limit);
  }
  const kv::KvSpan span{std::string(begin), std::string(end), limit};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, Read(context, {&span, 1}));
  return std::move(snapshot.ranges[0]);
}

Result<kv::KvSnapshot> DelegatedStore::Read(const Context& context, std::span<const kv::KvSpan> spans) {
  const auto session = membership_.session();
  uint64_t began = 0;
  {
    MutexLock lock(mutex_);
    if (session.ok()) {
      ForgetOldSession(*session);
      auto answer = AnswerFromMemory(spans);
      // Asked after the look: then the lease lived at the look, and was the same all along.
      const auto now = answer ? membership_.session() : session;
      if (answer && now.ok() && now->number == session->number) {
        stats_.answered_total++;
        return std::move(*answer);
      }
    }
    if (context.IsStopped()) return MakeError(ErrorCode::kInterrupted, "nobody waits for the answer any more");
    if (context.IsLate()) return MakeError(ErrorCode::kUnavailable, "the answer is not in memory");
    stats_.read_total++;
    began = ++tick_;
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, fenced_.Read(context, spans));
  std::vector<InodeId> wanted;
  {
    MutexLock lock(mutex_);
    for (const kv::KvRange& range : snapshot.ranges) LearnHomes(range, began);
    Keep(spans, snapshot, began);
    if (session.ok()) wanted = CountReads(spans);
  }
  for (InodeId directory : wanted) Take(context, directory, *session);
  return snapshot;
}

// A range over more than one inode lies with no directory.
InodeId DelegatedStore::CoverOf(const kv::KvSpan& span) const {
  const bool is_wide = !span.end.empty() && (span.begin.size() < kInodePrefixBytes ||
                                             span.end > kv::PrefixEnd(span.begin.substr(0, kInodePrefixBytes)));
  return is_wide ? InodeId{} : CoverOf(span.begin);
}

InodeId DelegatedStore::CoverOf(std::string_view key) const {
  const ParsedKey parsed = Parse(key);
  if (parsed.kind == 0) return {};
  if (parsed.kind == 'E') return parsed.inode;
  // T keys are asked for of every inode; only directories have one.
  auto home = homes_.find(parsed.inode.value);
  if (home == homes_.end()) return {};
  // While nobody here held it, others may have moved the inode.
  auto directory = directories_.find(home->second.directory.value);
  const bool is_old = directory != directories_.end() && home->second.known_at < directory->second.held_from;
  return is_old ? InodeId{} : home->second.directory;
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
    Directory* directory = FindHeld(CoverOf(span));
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
  unknown_operations_.clear();
}

void DelegatedStore::LearnHomes(const kv::KvRange& range, uint64_t began) {
  for (const kv::KvEntry& entry : range.entries) {
    const ParsedKey parsed = Parse(entry.key);
    if (parsed.kind != 'I') continue;
    auto record = meta::InodeRecord::Decode(entry.value);
    if (!record.ok()) continue;
    SetHome(parsed.inode, {HomeOf(parsed.inode, *record), entry.revision, began});
  }
}

// What is remembered of an inode lies with its directory. It does not stay there: should the inode come back, that
// would be old.
DelegatedStore::Answers DelegatedStore::SetHome(InodeId inode, const Home& home) {
  if (homes_.size() >= kHomesMax) MakeRoom();
  Home& known = homes_[inode.value];
  if (known.revision > home.revision) return {};
  const Home old = std::exchange(known, home);
  const InodeId before = old.directory;
  if (before == home.directory) known.known_at = std::max(known.known_at, old.known_at);
  if (before == home.directory || before.value == 0) return {};
  if (Directory* now = FindHeld(home.directory)) now->generation = ++tick_;
  Directory* directory = FindHeld(before);
  if (directory == nullptr) return {};
  directory->generation = ++tick_;
  return TakeAnswers(*directory, inode);
}

DelegatedStore::Answers DelegatedStore::TakeAnswers(Directory& directory, InodeId inode) {
  Answers taken;
  for (char kind : std::string_view("ITDXP")) {
    const std::string prefix = Encoder().U8(static_cast<uint8_t>(kind)).BigEndianU64(inode.value).Take();
    const auto last_point = directory.points.lower_bound(kv::PrefixEnd(prefix));
    for (auto at = directory.points.lower_bound(prefix); at != last_point; answers_--) {
      taken.points.insert(directory.points.extract(at++));
    }
    const auto [first, last] = RangesNear(directory.ranges, prefix);
    for (auto at = first; at != last; answers_--) taken.ranges.insert(directory.ranges.extract(at++));
  }
  return taken;
}

void DelegatedStore::Keep(std::span<const kv::KvSpan> spans, const kv::KvSnapshot& snapshot, uint64_t began) {
  for (size_t i = 0; i < spans.size(); i++) {
    Directory* directory = FindHeld(CoverOf(spans[i]));
    if (directory == nullptr || directory->valid_since > began || IsInFlight(spans[i])) continue;
    if (answers_ >= options_.answers_max) return MakeRoom();  // which forgets where inodes lie, too
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
  EraseRangesWith(*directory, key);
}

// A directory may have remembered ranges of each of its files, so no change looks at all of them.
std::pair<DelegatedStore::Ranges::iterator, DelegatedStore::Ranges::iterator> DelegatedStore::RangesNear(
    Ranges& ranges, std::string_view key) {
  const std::string prefix(key.substr(0, kInodePrefixBytes));
  return {ranges.lower_bound({prefix, "", 0}), ranges.lower_bound({kv::PrefixEnd(prefix), "", 0})};
}

void DelegatedStore::EraseRangesWith(Directory& directory, std::string_view key) {
  auto [range, last] = RangesNear(directory.ranges, key);
  while (range != last) {
    const bool contains = IsIn(range->first, key);
    if (contains) answers_--;
    range = contains ? directory.ranges.erase(range) : std::next(range);
  }
}

// The directories that are read so much that a delegation pays.
std::vector<InodeId> DelegatedStore::CountReads(std::span<const kv::KvSpan> spans) {
  if (watch_ == nullptr) return {};
  std::set<InodeId> touched;
  for (const kv::KvSpan& span : spans) touched.insert(CoverOf(span));
  touched.erase(InodeId{});
  std::vector<InodeId> wanted;
  const auto now = Clock::Now();
  for (InodeId id : touched) {
    if (directories_.size() >= 2 * options_.directories_max) {
      std::erase_if(directories_, [now](const auto& one) {
        return !one.second.held && !one.second.taking && one.second.giving_back == 0 && one.second.rest_until <= now;
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
    directory.recalls_before = directory.recalls;
    taking_++;
    directory.reads = 0;
    wanted.push_back(id);
  }
  return wanted;
}

}  // namespace cairnfs::coherence
