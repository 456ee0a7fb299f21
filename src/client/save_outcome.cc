#include "client/save_outcome.h"

#include <algorithm>

#include "base/context.h"
#include "client/errors.h"

namespace cairnfs::client {

void SaveOutcome::SourceIsFree() {
  MutexLock lock(mutex_);
  if (source_is_free_) return;
  source_is_free_ = true;
  source_ns_ = Elapsed();
  changed_.NotifyAll();
}

void SaveOutcome::Succeed(const cairnfs_save_result& result) {
  SourceIsFree();
  MutexLock lock(mutex_);
  result_ = result;
  result_.source_ns = source_ns_;
  result_.durable_ns = Elapsed();
  is_done_ = true;
  changed_.NotifyAll();
}

void SaveOutcome::Fail(const Error& error) {
  MutexLock lock(mutex_);
  error_ = CopyOf(error);
  source_is_free_ = true;
  is_done_ = true;
  changed_.NotifyAll();
}

bool SaveOutcome::AwaitLocked(const bool& what, int64_t timeout_ms) {
  // Longer than anybody waits, and short enough to be added to a time.
  constexpr int64_t kLongest = int64_t{1000} * 3600 * 24 * 365;
  const auto timeout = std::chrono::milliseconds(std::min(timeout_ms, kLongest));
  const Context context = timeout_ms < 0 ? Context() : Context().WithTimeout(timeout);
  return context.Wait(mutex_, changed_, [&what] { return what; });
}

Status SaveOutcome::WaitForSource(int64_t timeout_ms) {
  MutexLock lock(mutex_);
  if (!AwaitLocked(source_is_free_, timeout_ms)) {
    return MakeError(ErrorCode::kBusy, "the source is not free yet after " + std::to_string(timeout_ms) + " ms");
  }
  if (error_.has_value()) return *error_;
  return {};
}

Result<cairnfs_save_result> SaveOutcome::Wait(int64_t timeout_ms) {
  MutexLock lock(mutex_);
  if (!AwaitLocked(is_done_, timeout_ms)) {
    return MakeError(ErrorCode::kBusy, "the save has not ended yet after " + std::to_string(timeout_ms) + " ms");
  }
  if (error_.has_value()) return *error_;
  return result_;
}

}  // namespace cairnfs::client
