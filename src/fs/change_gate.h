// ChangeGate: lets somebody wait until all changes have ended that had begun before, while new ones go on.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/context.h"
#include "base/thread_annotations.h"

namespace cairnfs::fs {

// Any thread.
class ChangeGate {
 public:
  // The change lasts until all copies of this are gone, on whatever thread. The gate outlives them.
  std::shared_ptr<void> Begin() EXCLUDES_LOCK(mutex_);
  // False: the context expired first.
  bool AwaitBegun(const Context& context) EXCLUDES_LOCK(mutex_);

 private:
  void End(uint64_t phase) EXCLUDES_LOCK(mutex_);

  Mutex mutex_;
  CondVar ended_;
  bool is_awaited_ GUARDED_BY(mutex_) = false;
  uint64_t phase_ GUARDED_BY(mutex_) = 0;                 // changes of this one and of the one before may run
  std::array<uint64_t, 2> running_ GUARDED_BY(mutex_){};  // by whether the phase is odd
};

}  // namespace cairnfs::fs
