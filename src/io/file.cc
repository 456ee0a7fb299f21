#include "io/file.h"

#include <optional>

#include "base/thread_annotations.h"

namespace cairnfs::io {
namespace {

// Waits for one IoCallback.
class Completion {
 public:
  IoCallback Callback() {
    return [this](Result<size_t> result) {
      // Notified under the lock: the waiter, on whose stack this lives, cannot return before.
      MutexLock lock(mutex_);
      result_ = std::move(result);
      done_.NotifyOne();
    };
  }
  Result<size_t> Wait() {
    MutexLock lock(mutex_);
    while (!result_) done_.Wait(mutex_);
    return *result_;
  }

 private:
  Mutex mutex_;
  CondVar done_;
  std::optional<Result<size_t>> result_ GUARDED_BY(mutex_);
};

}  // namespace

Result<size_t> File::Read(uint64_t offset, MutableByteSpan data) {
  Completion completion;
  ReadAsync(offset, data, completion.Callback());
  return completion.Wait();
}

Status File::Write(uint64_t offset, ByteSpan data) {
  Completion completion;
  WriteAsync(offset, data, completion.Callback());
  CAIRNFS_RETURN_IF_ERROR(completion.Wait());
  return {};
}

}  // namespace cairnfs::io
