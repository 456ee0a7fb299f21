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
  static_cast<void>(Context().WithTimeout(kStopWaitsMax).Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) {
    return !is_searching_;
  }));
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
  MutexLock lock(mutex_);
  static_cast<void>(Context().WithTimeout(kGatherErrorsFor).Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) {
    return stopped_;
  }));
  return std::exchange(wanted_, {});
}

void ErrorNames::Name(const std::set<InodeId>& inodes) {
  const Context until_stop(stop_.get_token());
  if (records_name_directories_) {
    for (InodeId inode : inodes) {
      if (until_stop.IsStopped()) return;
      spdlog::error("inode {} of the messages before is '{}'", inode.value, names_.PathOfInode(until_stop, inode));
    }
    return;
  }
  auto paths = FindPaths(until_stop, kv_, names_, inodes);
  if (!paths.ok()) return;
  for (InodeId inode : inodes) {
    auto path = paths->find(inode);
    spdlog::error("inode {} of the messages before is {}", inode.value,
                  path == paths->end() ? "a file without a name" : "'" + path->second + "'");
  }
}

}  // namespace cairnfs::fs
