// ChangeGate: lets somebody wait until all changes have ended that had begun before, while new ones go on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::fs {

// Any thread.
class ChangeGate {
 public:
  // The change of an inode lasts until all copies of this are gone, on whatever thread. The gate outlives them.
  std::shared_ptr<void> Begin(InodeId inode) EXCLUDES_LOCK(mutex_);
  // Waits until those have ended that had begun before, or until the context expires. Of those that have not the
  // inodes.
  std::vector<InodeId> AwaitBegun(const Context& context) EXCLUDES_LOCK(mutex_);

 private:
  void End(uint64_t number) EXCLUDES_LOCK(mutex_);

  Mutex mutex_;
  CondVar ended_;
  uint64_t begun_ GUARDED_BY(mutex_) = 0;                   // so many
  std::map<uint64_t, InodeId> running_ GUARDED_BY(mutex_);  // in the order in which they began
};

}  // namespace cairnfs::fs
