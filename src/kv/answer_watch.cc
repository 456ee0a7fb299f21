#include "kv/answer_watch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/start_thread.h"

namespace cairnfs::kv {

AnswerWatch::~AnswerWatch() {
  destroyed_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void AnswerWatch::EndAfterSilence(std::chrono::milliseconds silence_max) {
  MutexLock lock(mutex_);
  if (std::exchange(is_limited_, true)) return;
  auto thread = StartThread("the end of waiting", [this, since = Clock::Now(), silence_max] {
    Run(Context(destroyed_.get_token()), since, silence_max);
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    spdlog::warn("calls to the store go on for as long as they may: {}", thread.error().message);
  }
}

void AnswerWatch::Run(const Context& context, Clock::time_point since, std::chrono::milliseconds silence_max) {
  MutexLock lock(mutex_);
  for (;;) {
    const std::optional<Clock::time_point> seen = unanswered_since_;
    const Context until_late = seen ? context.WithDeadline(std::max(since, *seen) + silence_max) : context;
    if (until_late.Wait(mutex_, changed_, [&]() REQUIRES_LOCK(mutex_) { return unanswered_since_ != seen; })) continue;
    if (context.IsStopped()) return;
    spdlog::warn(
        "the shared metadata has not answered for {} s and this host is stopping: what waits for it is given up",
        std::chrono::duration<double>(silence_max).count());
    break;
  }
  lock.Unlock();
  End();
}

AnswerWatch::Call::Call(AnswerWatch* watch) : watch_(watch) {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  watch_->calls_++;
  if (watch_->unanswered_since_) return;
  watch_->unanswered_since_ = Clock::Now();
  watch_->changed_.NotifyAll();
}

void AnswerWatch::Call::NoteAnswer() {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  watch_->unanswered_since_.reset();
  if (watch_->calls_ > 1) watch_->unanswered_since_ = Clock::Now();
  watch_->changed_.NotifyAll();
}

AnswerWatch::Call::~Call() {
  if (watch_ == nullptr) return;
  MutexLock lock(watch_->mutex_);
  watch_->calls_--;
}

}  // namespace cairnfs::kv
