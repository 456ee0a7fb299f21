// What a save has come to: what its handle waits for. Any thread.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "cairnfs/client.h"

namespace cairnfs::client {

class SaveOutcome {
 public:
  SaveOutcome() : begin_(Clock::Now()) {}

  void SourceIsFree();
  void Succeed(const cairnfs_save_result& result);  // fills in the times
  void Fail(const Error& error);                    // the source is free too

  // The error of the save; kBusy: the time is up. A negative time: without end.
  Status WaitForSource(int64_t timeout_ms);
  Result<cairnfs_save_result> Wait(int64_t timeout_ms);

 private:
  bool AwaitLocked(const bool& what, int64_t timeout_ms) REQUIRES_LOCK(mutex_);
  uint64_t Elapsed() const { return static_cast<uint64_t>((Clock::Now() - begin_).count()); }

  const Clock::time_point begin_;
  Mutex mutex_;
  CondVar changed_;
  bool source_is_free_ GUARDED_BY(mutex_) = false;
  bool is_done_ GUARDED_BY(mutex_) = false;
  uint64_t source_ns_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ GUARDED_BY(mutex_);
  cairnfs_save_result result_ GUARDED_BY(mutex_) = {};
};

}  // namespace cairnfs::client
