#include "kv/patience.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "kv/start_thread.h"

namespace cairnfs::kv {
namespace {

thread_local Patience* of_this_thread = nullptr;

}  // namespace

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
      StartThread("the end of waiting", [this, since = Clock::Now(), silence_max] { Run(since, silence_max); });
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
    const auto left = std::max(since, *unanswered_since_) + silence_max - Clock::Now();
    if (left <= Clock::duration::zero()) {
      spdlog::warn(
          "the shared metadata has not answered for {} s and this host is stopping: what waits for it is given up",
          std::chrono::duration<double>(silence_max).count());
      return EndLocked();
    }
    changed_.WaitFor(mutex_, left);
  }
}

void Patience::EndLocked() {
  is_over_ = true;
  changed_.NotifyAll();
  for (const std::function<void()>& give_up : entries_) give_up();
}

void Patience::End() {
  MutexLock lock(mutex_);
  EndLocked();
}

Patience::OfThread::OfThread(Patience* patience) : around_(std::exchange(of_this_thread, patience)) {}

Patience::OfThread::~OfThread() { of_this_thread = around_; }

Patience* Patience::Current() { return of_this_thread; }

bool Patience::IsWaitOver(const Patience* patience) {
  return (patience != nullptr && patience->IsOver()) || (of_this_thread != nullptr && of_this_thread->IsOver());
}

bool Patience::Sleep(Patience* patience, std::chrono::microseconds time) {
  const auto until = Clock::Now() + time;
  Mutex mutex;
  CondVar changed;
  const std::function<void()> wake = [&] {
    MutexLock lock(mutex);
    changed.NotifyAll();
  };
  const Entry at_store(patience, wake), at_thread(of_this_thread, wake);
  MutexLock lock(mutex);
  while (!IsWaitOver(patience)) {
    const auto left = until - Clock::Now();
    if (left <= Clock::duration::zero()) return true;
    changed.WaitFor(mutex, left);
  }
  return false;
}

Patience::Entry::Entry(Patience* patience, const std::function<void()>& give_up) : patience_(patience) {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  if (patience_->is_over_) give_up();
  patience_->entries_.push_front(give_up);
  place_ = patience_->entries_.begin();
}

Patience::Entry::~Entry() {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->entries_.erase(place_);
}

Patience::Call::Call(Patience* patience, const std::function<void()>& give_up)
    : patience_(patience), at_store_(patience, give_up), at_thread_(of_this_thread, give_up) {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->calls_++;
  if (patience_->unanswered_since_) return;
  patience_->unanswered_since_ = Clock::Now();
  if (patience_->is_limited_) patience_->changed_.NotifyAll();
}

void Patience::Call::NoteAnswer() {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->unanswered_since_.reset();
  if (patience_->calls_ > 1) patience_->unanswered_since_ = Clock::Now();
}

Patience::Call::~Call() {
  if (patience_ == nullptr) return;
  MutexLock lock(patience_->mutex_);
  patience_->calls_--;
}

}  // namespace cairnfs::kv
