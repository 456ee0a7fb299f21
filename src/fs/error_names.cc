#include "fs/error_names.h"

#include "base/log.h"
#include "fs/paths.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::minutes kAgain{1};

}  // namespace

void ErrorNames::Stop() {
  stop_.request_stop();
  MutexLock lock(mutex_);
  stopped_ = true;
}

void ErrorNames::Note(InodeId inode) {
  const auto now = std::chrono::steady_clock::now();
  MutexLock lock(mutex_);
  if (stopped_) return;
  std::erase_if(noted_, [&](const auto& item) { return now - item.second > kAgain; });
  if (!noted_.emplace(inode, now).second) return;
  wanted_.insert(inode);
  if (wanted_.size() == 1) queue_.Post([this] { Search(); });
}

void ErrorNames::Search() {
  std::set<InodeId> wanted;
  {
    MutexLock lock(mutex_);
    wanted.swap(wanted_);
  }
  if (records_name_directories_) {
    for (InodeId inode : wanted) {
      if (stop_.stop_requested()) return;
      spdlog::error("inode {} of the messages before is '{}'", inode.value, names_.PathOfInode(inode));
    }
    return;
  }
  auto paths = FindPaths(kv_, names_, wanted, stop_.get_token());
  if (!paths.ok()) return;
  for (InodeId inode : wanted) {
    auto path = paths->find(inode);
    spdlog::error("inode {} of the messages before is {}", inode.value,
                  path == paths->end() ? "a file without a name" : "'" + path->second + "'");
  }
}

}  // namespace cairnfs::fs
