#include "fs/runs.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "meta/policy_records.h"
#include "retention/policy.h"
#include "retention/step_pattern.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr int kRunLevelsMax = 64;
constexpr size_t kCandidatesMax = 256;  // those of the largest steps: of others no commit is read
// What a look at one counts for: it is some reads of its own.
constexpr size_t kNamesPerCandidate = Runs::kNamesPerRefresh / Runs::kCandidatesPerRefresh;
constexpr uint32_t kAllMayList = 05;  // of others: read and enter

double SecondsOfNs(uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

double SecondsBetween(const Timestamp& from, const Timestamp& to) {
  return static_cast<double>(to.seconds - from.seconds) +
         1e-9 * (static_cast<double>(to.nanoseconds) - static_cast<double>(from.nanoseconds));
}

std::string NumberLabel(InodeId run) { return "#" + std::to_string(run.value); }

// Each save counts once, though not each has all of these.
void AddCosts(const Runs::News& news, RunReport& report) {
  const meta::CommitPart& part = *news.own;
  if (part.first_write) report.write.Add(SecondsOfNs(part.write_ns));
  if (part.wait_ns > 0) report.wait.Add(SecondsOfNs(part.wait_ns));
  if (news.renamed_ns) report.commit.Add(SecondsOfNs(*news.renamed_ns));
  report.written_bytes += part.written_bytes;
  report.new_bytes += part.new_bytes;
}

}  // namespace

void Durations::Add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  if (bound != kBounds.end()) ++counts.at(static_cast<size_t>(bound - kBounds.begin()));
  ++count;
  sum_seconds += seconds;
}

std::optional<Runs::Place> Runs::Find(const Context& context, InodeId checkpoint) {
  const auto parent = names_.ParentOf(context, checkpoint);
  if (!parent.ok() || *parent == kRootInode) return std::nullopt;
  const auto text = names_.GetXattr(context, *parent, CAIRNFS_XATTR_RETAIN);
  if (!text.ok()) return std::nullopt;
  const auto policy = retention::ParsePolicy(*text);
  const auto attr = names_.GetAttr(context, *parent);
  if (!policy.ok() || !attr.ok()) return std::nullopt;
  Place place{.run = *parent, .uid = attr->uid};
  const auto name = names_.NameIn(context, *parent, checkpoint);
  if (!name.ok()) return place;
  const auto pattern = retention::StepPattern::Parse(policy->match);
  if (!pattern.ok()) return std::nullopt;
  const auto step = pattern->StepOf(*name);
  if (!step.ok() || !step->has_value()) return std::nullopt;
  place.step = *step;
  return place;
}

std::string Runs::Label(const Context& context, InodeId run) {
  std::string path;
  InodeId at = run;
  for (int level = 0; at != kRootInode; ++level) {
    const auto parent = names_.ParentOf(context, at);
    if (!parent.ok() || level == kRunLevelsMax) return NumberLabel(run);
    const auto attr = names_.GetAttr(context, *parent);
    const auto name = names_.NameIn(context, *parent, at);
    if (!attr.ok() || !name.ok() || (attr->mode & kAllMayList) != kAllMayList) return NumberLabel(run);
    path = "/" + *name + path;
    at = *parent;
  }
  return path.size() <= kLabelBytesMax && IsPlainText(path) ? path : NumberLabel(run);
}

bool Runs::IsNewest(InodeId checkpoint_parent, const Timestamp& at) const {
  MutexLock lock(mutex_);
  const auto found = runs_.find(checkpoint_parent);
  return found == runs_.end() || found->second.committed_at < at;
}

bool Runs::HasRoomFor(uint32_t uid) const {
  const auto own = std::count_if(runs_.begin(), runs_.end(), [&](const auto& run) { return run.second.uid == uid; });
  return static_cast<size_t>(own) < 2 * (kRunsMax - runs_.size());
}

Runs::Run* Runs::FindOrMake(const Place& place, std::string label) {
  if (!runs_.contains(place.run) && !HasRoomFor(place.uid)) {
    const int64_t idle_before = Clock::WallTime().seconds - kIdleSecondsMax;
    std::erase_if(runs_, [&](const auto& run) { return run.second.committed_at.seconds < idle_before; });
  }
  if (!runs_.contains(place.run) && (!HasRoomFor(place.uid) || !TakeLabel(place.uid))) return nullptr;
  Run& run = runs_[place.run];
  run.uid = place.uid;
  const bool is_another = !run.report.directory.empty() && label != run.report.directory;
  if (is_another && label != NumberLabel(place.run) && !TakeLabel(place.uid)) label = NumberLabel(place.run);
  // Another one has moved away from this path, or was removed.
  for (auto& [inode, other] : runs_) {
    if (other.report.directory == label) other.report.directory = NumberLabel(inode);
  }
  run.report.directory = std::move(label);
  return &run;
}

bool Runs::TakeLabel(uint32_t uid) {
  const auto now = Clock::Now();
  std::erase_if(labels_given_, [&](const auto& given) { return given.first + std::chrono::hours(1) <= now; });
  const auto own =
      std::count_if(labels_given_.begin(), labels_given_.end(), [&](const auto& given) { return given.second == uid; });
  if (static_cast<size_t>(own) >= 2 * (kLabelsPerHourMax - labels_given_.size())) return false;
  labels_given_.emplace_back(now, uid);
  return true;
}

// A save that began before the last one tells nothing.
void Runs::AddTraining(const meta::CommitPart& part, Run& run) {
  if (!part.first_write || (run.saving_since && *part.first_write <= *run.saving_since)) return;
  if (run.saving_since) {
    const double apart = SecondsBetween(*run.saving_since, *part.first_write);
    run.report.training.Add(std::max(0.0, apart - SecondsOfNs(run.calls_ns)));
  }
  run.saving_since = part.first_write;
  run.calls_ns = part.write_ns + part.wait_ns;
}

void Runs::Note(const Context& context, InodeId checkpoint, const News& news) {
  if (!news.own) {
    const auto parent = names_.ParentOf(context, checkpoint);
    if (!parent.ok() || !IsNewest(*parent, news.at)) return;
  }
  const auto place = Find(context, checkpoint);
  if (!place) return;
  std::string label = Label(context, place->run);
  MutexLock lock(mutex_);
  Run* run = FindOrMake(*place, std::move(label));
  if (run == nullptr) {
    if (news.own) AddCosts(news, others_);
    return;
  }
  ++run->notes;
  run->committed_at = std::max(run->committed_at, news.at);
  const Newest noted{.step = place->step, .at = news.at};
  if (!run->newest || noted.IsNewerThan(*run->newest)) run->newest = noted;
  run->names_as_of.reset();
  if (!news.own) return;
  AddCosts(news, run->report);
  AddTraining(*news.own, *run);
}

void Runs::NoteNewBytes(const Context& context, InodeId checkpoint, uint64_t bytes) {
  const auto place = Find(context, checkpoint);
  if (!place) return;
  MutexLock lock(mutex_);
  const auto found = runs_.find(place->run);
  (found == runs_.end() ? others_ : found->second.report).new_bytes += bytes;
}

bool Runs::Newest::IsNewerThan(const Newest& other) const {
  return step && other.step && *step != *other.step ? *step > *other.step : other.at <= at;
}

void Runs::Refresh(const Context& context) {
  std::vector<InodeId> inodes;
  {
    MutexLock lock(mutex_);
    for (const auto& [inode, run] : runs_) inodes.push_back(inode);
  }
  for (const InodeId inode : NextUnknown(context)) inodes.push_back(inode);
  if (inodes.empty()) return;
  // Another one is the first each time, so that whoever has many names keeps nobody out.
  std::rotate(inodes.begin(), inodes.begin() + static_cast<std::ptrdiff_t>(refreshes_++ % inodes.size()), inodes.end());
  size_t names_left = kNamesPerRefresh;
  for (const InodeId inode : inodes) Look(context, inode, names_left);
}

std::vector<InodeId> Runs::NextUnknown(const Context& context) {
  std::vector<InodeId> next;
  const std::string after = meta::PolicyKey(InodeId{last_looked_at_.value + 1});
  // Each may have keys of how it was applied, beside it.
  const auto page = kv_.Range(context, after, kv::PrefixEnd(meta::PoliciesPrefix()), 3 * kPoliciesPerRefresh);
  if (!page.ok()) return next;
  MutexLock lock(mutex_);
  for (const kv::KvEntry& entry : page->entries) {
    const auto inode = meta::InodeOfPolicyKey(entry.key);
    if (!inode) continue;
    last_looked_at_ = *inode;
    if (!runs_.contains(*inode)) next.push_back(*inode);
    if (next.size() == kPoliciesPerRefresh) return next;
  }
  if (!page->more) last_looked_at_ = InodeId{};
  return next;
}

void Runs::Look(const Context& context, InodeId inode, size_t& names_left) {
  const auto text = names_.GetXattr(context, inode, CAIRNFS_XATTR_RETAIN);
  const auto attr = names_.GetAttr(context, inode);
  const auto is_of_none = [](const auto& read) {
    return !read.ok() && (read.error().code == ErrorCode::kNoData || read.error().code == ErrorCode::kNotFound);
  };
  uint64_t notes = 0;
  std::optional<InodeId> in_place;
  {
    MutexLock lock(mutex_);
    if (is_of_none(text) || is_of_none(attr)) runs_.erase(inode);
    if (!text.ok() || !attr.ok()) return;
    const auto known = runs_.find(inode);
    if (known == runs_.end() && !HasRoomFor(attr->uid)) return;
    if (known != runs_.end() && known->second.names_as_of == attr->ctime) {
      in_place = known->second.in_place;
      if (!in_place) return;
    }
    if (known != runs_.end()) notes = known->second.notes;
  }
  if (in_place) return LookAgain(context, inode, *in_place);
  if (names_left == 0) return;
  const auto policy = retention::ParsePolicy(*text);
  if (!policy.ok()) return;
  const auto found = FindNewest(context, inode, *policy, names_left);
  if (!found.ok()) return;
  const Place place{.run = inode, .uid = attr->uid};
  std::string label = Label(context, inode);
  MutexLock lock(mutex_);
  const auto known = runs_.find(inode);
  // One without a commit for a day would only take the place of another.
  const int64_t idle_before = Clock::WallTime().seconds - kIdleSecondsMax;
  if (known == runs_.end() && (!found->newest || found->newest->at.seconds < idle_before)) return;
  if (known != runs_.end() && known->second.notes != notes) return;  // a commit came meanwhile
  Run* run = FindOrMake(place, std::move(label));
  if (run == nullptr) return;
  run->newest = found->newest;
  if (found->newest) run->committed_at = std::max(run->committed_at, found->newest->at);
  run->in_place = found->in_place;
  run->names_as_of = attr->ctime;
}

// One that was made in place changes without its run.
void Runs::LookAgain(const Context& context, InodeId run, InodeId in_place) {
  const auto attr = names_.GetAttr(context, in_place);
  if (!attr.ok()) return;
  MutexLock lock(mutex_);
  const auto known = runs_.find(run);
  if (known == runs_.end() || known->second.in_place != in_place) return;
  known->second.newest->at = attr->mtime;
  known->second.committed_at = std::max(known->second.committed_at, attr->mtime);
}

Result<Runs::Found> Runs::FindNewest(const Context& context, InodeId run, const retention::Policy& policy,
                                     size_t& names_left) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto pattern, retention::StepPattern::Parse(policy.match));
  CAIRNFS_ASSIGN_OR_RETURN(const auto entries, names_.ReadDirectory(context, run, "", kNamesMax + 1));
  names_left -= std::min(names_left, entries.size());
  if (entries.size() > kNamesMax) return MakeError(ErrorCode::kTooLarge, "a run of too many names");
  std::vector<std::pair<uint64_t, InodeId>> candidates;
  for (const meta::DirectoryEntry& entry : entries) {
    const auto step = pattern.StepOf(entry.name);
    const bool is_one = S_ISDIR(entry.type) && step.ok() && step->has_value();
    if (is_one && !retention::NameBeforeGoing(entry.name)) candidates.emplace_back(**step, entry.inode);
  }
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  const bool are_all = candidates.size() <= kCandidatesMax;
  if (!are_all) candidates.resize(kCandidatesMax);
  // Without a pattern nobody has said that what was made in place is a checkpoint, where others were committed.
  const bool in_place_counts = !policy.match.empty();
  std::optional<Newest> committed, in_place;
  InodeId newest_in_place{};
  for (const auto& [step, inode] : candidates) {
    const std::optional<Newest>& decided = in_place_counts && !committed ? in_place : committed;
    if (decided && decided->step != step) break;
    names_left -= std::min(names_left, kNamesPerCandidate);
    CAIRNFS_ASSIGN_OR_RETURN(const auto commit, names_.ReadCommit(context, inode));
    // Retention has removed it, but for what stays inside it.
    if (!commit && names_.GetXattr(context, inode, CAIRNFS_XATTR_REMOVING).ok()) continue;
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names_.GetAttr(context, inode));
    const Newest one{.step = step, .at = commit ? commit->record.at : attr.mtime};
    std::optional<Newest>& newest = commit ? committed : in_place;
    if (newest && !one.IsNewerThan(*newest)) continue;
    newest = one;
    if (!commit) newest_in_place = inode;
  }
  const bool counts = in_place && (!committed || (in_place_counts && !committed->IsNewerThan(*in_place)));
  if (!are_all && !committed && !(counts && in_place_counts)) {
    return MakeError(ErrorCode::kTooLarge, "too many were made in place");
  }
  Found found{.newest = counts ? in_place : committed};
  if (counts) found.in_place = newest_in_place;
  return found;
}

std::vector<RunReport> Runs::Tell() const {
  const Timestamp now = Clock::WallTime();
  MutexLock lock(mutex_);
  std::vector<RunReport> reports;
  for (const auto& [inode, run] : runs_) {
    RunReport& report = reports.emplace_back(run.report);
    if (!run.newest) continue;
    report.checkpoint_step = run.newest->step;
    report.checkpoint_age_seconds = static_cast<uint64_t>(std::max(0.0, SecondsBetween(run.newest->at, now)));
  }
  if (others_.wait.count + others_.write.count + others_.commit.count > 0) reports.push_back(others_);
  return reports;
}

}  // namespace cairnfs::fs
