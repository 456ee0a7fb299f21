// Clang's thread-safety annotations, and a mutex that carries them. Under gcc they say nothing.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define CAIRNFS_ATTRIBUTE(x) __attribute__((x))
#else
#define CAIRNFS_ATTRIBUTE(x)
#endif

#define GUARDED_BY(x) CAIRNFS_ATTRIBUTE(guarded_by(x))
#define REQUIRES_LOCK(...) CAIRNFS_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES_LOCK(...) CAIRNFS_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS CAIRNFS_ATTRIBUTE(no_thread_safety_analysis)

namespace cairnfs {

class CAIRNFS_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() CAIRNFS_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() CAIRNFS_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool TryLock() CAIRNFS_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }
  // Tells the analysis that the caller holds it, where it cannot see that (lambdas).
  void AssertHeld() const CAIRNFS_ATTRIBUTE(assert_capability(this)) {}
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class CAIRNFS_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRNFS_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() CAIRNFS_ATTRIBUTE(release_capability()) {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void Unlock() CAIRNFS_ATTRIBUTE(release_capability()) {
    held_ = false;
    mutex_.Unlock();
  }
  void Lock() CAIRNFS_ATTRIBUTE(acquire_capability()) {
    mutex_.Lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

class CondVar {
 public:
  // Releases the mutex while waiting and holds it again on return; may return early.
  void Wait(Mutex& mutex) REQUIRES_LOCK(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // As Wait; false once it is `time` by the clock, or `timeout` has passed.
  bool WaitUntil(Mutex& mutex, Clock::time_point time) REQUIRES_LOCK(mutex) {
    std::unique_lock<std::mutex> lock(mutex.native(), std::adopt_lock);
    Clock::WaitUntil(condition_, lock, time);
    lock.release();
    return Clock::Now() < time;
  }
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds timeout) REQUIRES_LOCK(mutex) {
    return WaitUntil(mutex, Clock::Now() + timeout);
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace cairnfs
