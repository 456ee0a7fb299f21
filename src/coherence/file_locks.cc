#include "coherence/file_locks.h"

#include <algorithm>

namespace cairnfs::coherence {
namespace {

constexpr std::chrono::seconds kReleaseWait{1};

}  // namespace

FileLock FileLocks::LockOf(const Request& request, const cluster::NodeId& node) {
  const bool is_flock = request.kind == LockKind::kFlock;
  FileLock lock;
  lock.owner = {node, request.kind, is_flock ? request.handle : request.owner};
  lock.type = request.type;
  lock.handle = request.handle;
  lock.pid = request.pid;
  if (!is_flock) {
    lock.start = request.start;
    lock.last = request.last;
  }
  return lock;
}

void FileLocks::ReleaseOwner(InodeId inode, uint64_t owner, const Done<void>& done) {
  Request request;
  request.inode = inode;
  request.owner = owner;
  Unlock(request, done);
}

void ClosingHandles::Note(uint64_t handle) { closed_at_[handle] = Clock::Now(); }

bool ClosingHandles::MayFree(const std::vector<FileLock>& held, const FileLock& wanted) const {
  return std::any_of(held.begin(), held.end(), [&](const FileLock& each) {
    const auto closed = closed_at_.find(each.handle);
    return closed != closed_at_.end() && Clock::Now() < closed->second + kReleaseWait && InConflict(each, wanted);
  });
}

}  // namespace cairnfs::coherence
