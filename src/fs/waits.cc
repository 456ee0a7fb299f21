#include "fs/waits.h"

#include <chrono>
#include <utility>

namespace cairnfs::fs {

void Waits::Stop() {
  if (!watcher_.joinable()) return;
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    wake_.NotifyAll();
  }
  watcher_.join();
  // Who was not answered by now is not any more; what they hold goes while all else is there.
  std::vector<std::shared_ptr<Wait>> unanswered;
  MutexLock lock(mutex_);
  unanswered.swap(waits_);
  lock.Unlock();
}

SyncRounds::Answer Waits::UnlessKilled(const Caller& caller, Done<void> done) {
  if (!caller.cancelled) {
    return [done = std::move(done)](const Status& status) {
      done(status);
      return true;
    };
  }
  return UnlessCancelled(caller, Clock::time_point::max(), {}, std::move(done));
}

SyncRounds::Answer Waits::UnlessCancelled(const Caller& caller, Clock::time_point deadline, std::function<Error()> late,
                                          Done<void> done) {
  auto wait = std::make_shared<Wait>();
  wait->cancelled = caller.cancelled;
  wait->deadline = deadline;
  wait->late = std::move(late);
  wait->done = std::move(done);
  {
    MutexLock lock(mutex_);
    waits_.push_back(wait);
    if (!is_watched_) wake_.NotifyOne();
  }
  return [wait](const Status& status) {
    Done<void> answer;
    {
      MutexLock lock(wait->mutex);
      if (std::exchange(wait->answered, true)) return false;
      answer = std::move(wait->done);
    }
    answer(status);
    return true;
  };
}

void Waits::Watch() {
  for (;;) {
    std::vector<std::shared_ptr<Wait>> current;
    {
      MutexLock lock(mutex_);
      while (waits_.empty() && !is_stopping_) {
        is_watched_ = false;
        wake_.Wait(mutex_);
      }
      if (is_stopping_) return;
      is_watched_ = true;
      std::erase_if(waits_, [](const auto& wait) {
        MutexLock answer(wait->mutex);
        return wait->answered;
      });
      current = waits_;
    }
    auto now = Clock::Now();
    for (const auto& wait : current) {
      bool killed = false;
      Done<void> answer;
      {
        MutexLock lock(wait->mutex);
        if (wait->answered) continue;
        killed = wait->cancelled && wait->cancelled();
        if (!killed && now < wait->deadline) continue;
        wait->answered = true;
        answer = std::move(wait->done);
      }
      answer(killed ? MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited") : wait->late());
    }
    MutexLock lock(mutex_);
    if (!is_stopping_ && !current.empty()) wake_.WaitFor(mutex_, std::chrono::milliseconds(20));
  }
}

}  // namespace cairnfs::fs
