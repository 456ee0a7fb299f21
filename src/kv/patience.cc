#include "kv/patience.h"

#include <algorithm>

#include "base/log.h"
#include "kv/start_thread.h"

namespace cairnfs::kv {

Patience::~Patience() {
  {
    MutexLock lock(mutex_);
    is_ending_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Patience::Limit(std::chrono::milliseconds silence_max) {
  MutexLock lock(mutex_);
  if (is_limited_) return;
  is_limited_ = true;
  auto thread =
      StartThread("the end of waiting", [this, since = Clock::now(), silence_max] { Run(since, silence_max); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    spdlog::warn("calls to the store go on for as long as they may: {}", thread.error().message);
  }
}

void Patience::Run(Clock::time_point since, std::chrono::milliseconds silence_max) {
  MutexLock lock(mutex_);
  while (!is_ending_) {
    if (!unanswered_since_) {
      changed_.Wait(mutex_);
      continue;
    }
    const auto left = std::max(since, *unanswered_since_) + silence_max - Clock::now();
    if (left <= Clock::duration::zero()) return End(silence_max);
    changed_.WaitFor(mutex_, left);
  }
}

void Patience::End(std::chrono::milliseconds silence_max) {
  spdlog::warn("the shared metadata has not answered for {} s and this host is stopping: what waits for it is given up",
               std::chrono::duration<double>(silence_max).count());
  is_over_ = true;
  changed_.NotifyAll();
  for (const std::function<void()>& give_up : calls_) give_up();
}

bool Patience::Sleep(std::chrono::microseconds time) {
  const auto until = Clock::now() + time;
  MutexLock lock(mutex_);
  while (!is_over_) {
    const auto left = until - Clock::now();
    if (left <= Clock::duration::zero()) return true;
    changed_.WaitFor(mutex_, left);
  }
  return false;
}

Patience::Call::Call(Patience* patience, std::function<void()> give_up) : patience_(patience) {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  if (patience_->is_over_) give_up();
  patience_->calls_.push_front(std::move(give_up));
  place_ = patience_->calls_.begin();
  if (patience_->unanswered_since_) return;
  patience_->unanswered_since_ = Clock::now();
  if (patience_->is_limited_) patience_->changed_.NotifyAll();
}

void Patience::Call::NoteAnswer() {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->unanswered_since_.reset();
  if (patience_->calls_.size() > 1) patience_->unanswered_since_ = Clock::now();
}

Patience::Call::~Call() {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->calls_.erase(place_);
}

}  // namespace cairnfs::kv
