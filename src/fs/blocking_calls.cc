#include "fs/blocking_calls.h"

#include <atomic>
#include <optional>
#include <utility>

namespace cairnfs::fs {

// One that is run or refused, whichever comes first.
struct BlockingCalls::Call {
  std::function<void()> task;
  std::function<void(const Error&)> refused;
  std::atomic<bool> is_taken = false;
  std::optional<Context::OnStop> on_stop;
};

BlockingCalls::BlockingCalls(const std::string& name, unsigned thread_count)
    : queue_(std::make_unique<TaskQueue>(name, thread_count)) {}

void BlockingCalls::Stop() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  queue_.reset();
}

bool BlockingCalls::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (is_closed_) return false;
  queue_->Post(std::move(task));
  return true;
}

void BlockingCalls::Post(const Context& context, std::function<void()> task,
                         std::function<void(const Error&)> refused) {
  auto call = std::make_shared<Call>();
  call->task = std::move(task);
  call->refused = std::move(refused);
  call->on_stop.emplace(context, [call = call.get()] {
    if (call->is_taken.exchange(true)) return;
    call->refused(MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited"));
  });
  const bool is_posted = Post([call] {
    if (!call->is_taken.exchange(true)) call->task();
  });
  if (is_posted || call->is_taken.exchange(true)) return;
  call->refused(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping"));
}

}  // namespace cairnfs::fs
