// Whether other hosts read now what this host reads, as when all restore one checkpoint. Then a chunk is best read from
// one disk for all, also by those that have it on their own.
#pragma once

#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "cluster/confirmed_set.h"

namespace cairnfs::cluster {

// The sign is a chunk that was both read here and served to another host within the last so many of each. Any thread.
class SharedReads {
 public:
  // `last`: they are going on for so long since the sign was seen.
  explicit SharedReads(std::chrono::milliseconds last) : last_(last) {}

  void NoteRead(const Digest& digest) EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    read_.Insert(digest);
    if (served_.Contains(digest)) SeenShared();
  }
  void NoteServed(const Digest& digest) EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    served_.Insert(digest);
    if (read_.Contains(digest)) SeenShared();
  }
  bool AreGoingOn() const { return Clock::Now() < until_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kRemembered = 16 * 1024;
  void SeenShared() { until_.store(Clock::Now() + last_, std::memory_order_relaxed); }

  const std::chrono::milliseconds last_;
  Mutex mutex_;
  ConfirmedSet read_ GUARDED_BY(mutex_){kRemembered}, served_ GUARDED_BY(mutex_){kRemembered};
  std::atomic<Clock::time_point> until_{Clock::time_point{}};
};

}  // namespace cairnfs::cluster
