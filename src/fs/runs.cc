#include "fs/runs.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "retention/policy.h"
#include "retention/step_pattern.h"

namespace cairnfs::fs {
namespace {

constexpr int kRunLevelsMax = 64;
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

Runs::Run* Runs::FindOrMake(const Place& place) {
  const auto found = runs_.find(place.run);
  if (found != runs_.end()) return &found->second;
  if (!HasRoomFor(place.uid)) {
    const int64_t idle_before = Clock::WallTime().seconds - kIdleSecondsMax;
    std::erase_if(runs_, [&](const auto& run) { return run.second.committed_at.seconds < idle_before; });
  }
  if (!HasRoomFor(place.uid) || !TakeLabel(place.uid)) return nullptr;
  return &runs_[place.run];
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
  Run* run = FindOrMake(*place);
  if (run == nullptr) {
    if (news.own) AddCosts(news, others_);
    return;
  }
  run->uid = place->uid;
  if (run->committed_at <= news.at) {
    run->committed_at = news.at;
    run->report.checkpoint_step = place->step;
  }
  const bool is_another = !run->report.directory.empty() && label != run->report.directory;
  if (is_another && label != NumberLabel(place->run) && !TakeLabel(place->uid)) label = NumberLabel(place->run);
  // Another one has moved away from this path, or was removed.
  for (auto& [inode, other] : runs_) {
    if (other.report.directory == label) other.report.directory = NumberLabel(inode);
  }
  run->report.directory = label;
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

void Runs::Refresh(const Context& context) {
  std::vector<InodeId> known;
  {
    MutexLock lock(mutex_);
    for (const auto& [inode, run] : runs_) known.push_back(inode);
  }
  for (const InodeId inode : known) {
    const auto policy = names_.GetXattr(context, inode, CAIRNFS_XATTR_RETAIN);
    if (policy.ok()) continue;
    if (policy.error().code != ErrorCode::kNoData && policy.error().code != ErrorCode::kNotFound) continue;
    MutexLock lock(mutex_);
    runs_.erase(inode);
  }
}

std::vector<RunReport> Runs::Tell() const {
  const Timestamp now = Clock::WallTime();
  MutexLock lock(mutex_);
  std::vector<RunReport> reports;
  for (const auto& [inode, run] : runs_) {
    RunReport& report = reports.emplace_back(run.report);
    report.checkpoint_age_seconds = static_cast<uint64_t>(std::max(0.0, SecondsBetween(run.committed_at, now)));
  }
  if (others_.wait.count + others_.write.count + others_.commit.count > 0) reports.push_back(others_);
  return reports;
}

}  // namespace cairnfs::fs
