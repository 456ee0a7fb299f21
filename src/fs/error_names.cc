#include "fs/error_names.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "fs/paths.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::minutes kAgain{1};
constexpr std::chrono::seconds kGatherErrorsFor{1};
constexpr std::chrono::seconds kTidyErrorsEvery{1};
constexpr std::chrono::seconds kStopWaitsMax{2};

}  // namespace

void ErrorNames::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
  // What the last messages are about is told too, if that does not take long.
  const auto until = Clock::Now() + kStopWaitsMax;
  while (is_searching_) {
    const auto left = until - Clock::Now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  stop_.request_stop();
}

void ErrorNames::Note(InodeId inode) {
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  if (stopped_) return;
  ForgetOld(now);
  if (!noted_.emplace(inode, now).second) return;
  wanted_.insert(inode);
  if (!is_searching_) PostSearch();
}

// Looks through all that was noted in the last minute, and so not each time.
void ErrorNames::ForgetOld(TimePoint now) {
  if (now - tidied_at_ < kTidyErrorsEvery) return;
  tidied_at_ = now;
  std::erase_if(noted_, [&](const auto& item) { return now - item.second > kAgain; });
}

void ErrorNames::PostSearch() {
  is_searching_ = true;
  queue_.Post([this] { Search(); });
}

void ErrorNames::Search() {
  Name(Gather());
  MutexLock lock(mutex_);
  is_searching_ = false;
  // Until Stop has returned, which sets stop_ with the lock held.
  if (!stop_.stop_requested() && !wanted_.empty()) PostSearch();
  changed_.NotifyAll();
}

std::set<InodeId> ErrorNames::Gather() {
  const auto until = Clock::Now() + kGatherErrorsFor;
  MutexLock lock(mutex_);
  while (!stopped_) {
    const auto left = until - Clock::Now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  return std::exchange(wanted_, {});
}

void ErrorNames::Name(const std::set<InodeId>& inodes) {
  if (records_name_directories_) {
    for (InodeId inode : inodes) {
      if (stop_.stop_requested()) return;
      spdlog::error("inode {} of the messages before is '{}'", inode.value, names_.PathOfInode(inode));
    }
    return;
  }
  auto paths = FindPaths(kv_, names_, inodes, stop_.get_token());
  if (!paths.ok()) return;
  for (InodeId inode : inodes) {
    auto path = paths->find(inode);
    spdlog::error("inode {} of the messages before is {}", inode.value,
                  path == paths->end() ? "a file without a name" : "'" + path->second + "'");
  }
}

}  // namespace cairnfs::fs
