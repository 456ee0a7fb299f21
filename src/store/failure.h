// The first failure of a write or a sync. After it the state of the files is unknown: the store refuses to write until
// it is opened again.
#pragma once

#include <atomic>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::store {

class FailureState {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Keeps the first one.
  void Fail(const Error& error) {
    MutexLock lock(mutex_);
    if (failed_.load()) return;
    message_ = error.message;
    failed_.store(true, std::memory_order_release);
    spdlog::error("the chunk store stops writing: {}", error.message);
  }
  // kFailed after a failure.
  Status Check() const {
    if (!failed()) return {};
    return MakeError(ErrorCode::kFailed, "the chunk store refuses writes after a failure: " + message());
  }
  std::string message() const {
    MutexLock lock(mutex_);
    return message_;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  std::string message_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::store
