// The pool of page-aligned buffers that data lives in on its way through the daemon.
//
// One mapping of private memory in huge pages, cut into equal buffers. Each buffer has
// kHeadroomBytes in front of a page boundary, where the headers of a FUSE request land, and kPayloadBytes after it.
// The pool's size is the back-pressure of the whole data path.
//
// A buffer takes memory once it is touched, and keeps it. A thread touches buffers as the pool is used, so that half of
// those that have memory are free. A user that is quicker than this thread reuses warm buffers rather than meet new
// pages.
//
// The pool is also the measure of what the daemon takes: who needs memory elsewhere borrows it, and the pool does
// without those buffers meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::io {

class BufferPool;

// A counted reference to one buffer; the last one gives it back to the pool. Copying is thread-safe as with shared_ptr.
class BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other);
  BufferRef(BufferRef&& other) noexcept;
  BufferRef& operator=(BufferRef other) noexcept;
  ~BufferRef();

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* headroom() const;  // kHeadroomBytes, ends where payload() begins
  std::byte* payload() const;   // page-aligned, kPayloadBytes
  bool Unique() const;          // no other reference exists

 private:
  friend class BufferPool;
  BufferRef(BufferPool* pool, uint32_t index) : pool_(pool), index_(index) {}
  BufferPool* pool_ = nullptr;
  uint32_t index_ = 0;
};

// Free buffers that the pool does without, and whose memory went back to the system. Goes back with the last of it;
// must not outlive the pool. Not thread-safe.
class MemoryLoan {
 public:
  MemoryLoan() = default;
  MemoryLoan(MemoryLoan&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), lent_(std::exchange(other.lent_, {})) {}
  MemoryLoan& operator=(MemoryLoan&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(lent_, other.lent_);
    return *this;
  }
  ~MemoryLoan();
  size_t bytes() const;
  void Add(MemoryLoan more);  // of the same pool

 private:
  friend class BufferPool;
  MemoryLoan(BufferPool* pool, std::vector<uint32_t> lent) : pool_(pool), lent_(std::move(lent)) {}
  BufferPool* pool_ = nullptr;
  std::vector<uint32_t> lent_;
};

// Bytes inside a buffer, kept alive by it. `owner` may be null for bytes that outlive every user (static zeros).
struct Slice {
  BufferRef owner;
  const std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> memory = nullptr;  // owns the bytes instead of a buffer, where none fits or is free

  Slice Sub(size_t offset, size_t length) const { return Slice{owner, data + offset, length, memory}; }
  ByteSpan bytes() const { return {data, size}; }
};

class BufferPool {
 public:
  static constexpr size_t kHeadroomBytes = kPageBytes;
  static constexpr size_t kPayloadBytes = kMiB + kPageBytes;  // 1 MiB, and room for an unaligned neighbour page
  static constexpr size_t kBufferBytes = kHeadroomBytes + kPayloadBytes;

  struct Options {
    size_t size_bytes_max;        // rounded down to whole buffers
    uint32_t reserved_count = 8;  // buffers that only AcquireReserved hands out: requests that are no writes, reads
    bool touches_all = false;     // all of it is touched at once, not as it is used
  };
  static constexpr size_t kFirstTouchedCount = 128;  // without being used: what a save needs to keep the disk busy
  // Maps the pool; kInvalidArgument when fewer than 2 * reserved_count buffers fit, kIo when memory cannot be had.
  // A thread of the pool touches the memory; buffers already touched are handed out first.
  static Result<std::unique_ptr<BufferPool>> Create(const Options& options);
  ~BufferPool();  // REQUIRES: every BufferRef and MemoryLoan is gone

  // Called now and then while an Acquire waits; true ends the wait. `without_release`: how long no waiting Acquire has
  // seen a buffer come free that it may take. All of them share that time, so a later one need not wait as long.
  using GiveUp = std::function<bool(std::chrono::milliseconds without_release)>;
  // Waits for a free buffer outside of the reserve. Null only after Close(), or when `gives_up` said true.
  BufferRef Acquire(const GiveUp& gives_up = nullptr);
  BufferRef TryAcquire();       // null when none is free beside the reserve
  BufferRef AcquireReserved();  // may take from the reserve; waits; null only after Close()
  void Close();                 // wakes all who wait

  // Lends at least so many bytes, and never waits. nullopt: more than half of the pool would be lent, or it would be
  // under pressure.
  std::optional<MemoryLoan> Borrow(uint64_t bytes);
  uint64_t lendable_bytes() const { return uint64_t{count_ / 2} * kBufferBytes; }

  size_t count() const { return count_; }
  size_t reserved_count() const { return reserved_count_; }
  size_t free_count() const { return free_count_.load(std::memory_order_relaxed); }
  size_t lent_count() const { return lent_count_.load(std::memory_order_relaxed); }
  // Buffers that have memory. The first kFirstTouchedCount count from the start.
  size_t touched_count() const { return touched_count_.load(std::memory_order_relaxed); }
  // True when fewer than 1 / `divisor` of the buffers that have memory are free, beside the reserve.
  bool HasFreeLessThan(size_t divisor) const;
  // True: nothing should be fetched ahead.
  bool UnderPressure() const { return HasFreeLessThan(8); }
  // Called each time an Acquire finds nothing and starts to wait, and every kPressureInterval while it waits, with the
  // same time. On the acquiring thread, no lock held.
  using PressureCallback = std::function<void(std::chrono::milliseconds without_release)>;
  static constexpr std::chrono::milliseconds kPressureInterval{50};
  void SetPressureCallback(PressureCallback callback) { on_pressure_ = std::move(callback); }

 private:
  friend class BufferRef;
  friend class MemoryLoan;
  BufferPool(std::byte* mapping, size_t mapped, size_t count, const Options& options);
  struct Waiters {
    CondVar freed;
    size_t count = 0;
    // When one of them found nothing to take, if no buffer came free for them since. A buffer that readers give back to
    // the reserve does not count for waiters that may not take it.
    std::optional<Clock::time_point> dry_since;
  };
  // Takes a free buffer, touched ones first, when more than `keep_count` are free; else null.
  BufferRef Take(size_t keep_count) REQUIRES_LOCK(mutex_);
  BufferRef WaitAndTake(size_t keep_count, Waiters BufferPool::*waiters, const GiveUp& gives_up) EXCLUDES_LOCK(mutex_);
  // How long nothing came free for these waiters, in whole kPressureIntervals. Begins to count if nobody has.
  std::chrono::milliseconds WithoutRelease(Waiters BufferPool::*waiters) REQUIRES_LOCK(mutex_);
  void WakeWaiters() REQUIRES_LOCK(mutex_);
  void Release(uint32_t index) EXCLUDES_LOCK(mutex_);
  void TakeBack(const std::vector<uint32_t>& lent) EXCLUDES_LOCK(mutex_);
  static void Touch(std::byte* begin);
  // How many of the buffers that have memory are free.
  size_t ready_count() const { return touched_count() - std::min(touched_count(), used_count()); }
  size_t used_count() const { return count_ - lent_count() - free_count(); }
  bool WantsTouching() const REQUIRES_LOCK(mutex_);
  void NoteTouched() REQUIRES_LOCK(mutex_);
  void TouchAhead(const std::stop_token& stop) EXCLUDES_LOCK(mutex_);

  std::byte* const mapping_;
  const size_t mapped_;
  std::byte* const base_;  // in the mapping, on the border of a huge page
  const size_t count_;
  const uint32_t reserved_count_;
  const size_t first_touched_count_;
  PressureCallback on_pressure_;  // set before threads start
  std::vector<std::atomic<uint32_t>> references_;
  std::atomic<size_t> free_count_{0};     // changed under mutex_ only
  std::atomic<size_t> touched_count_{0};  // changed under mutex_ only
  std::atomic<size_t> lent_count_{0};     // changed under mutex_ only
  Mutex mutex_;                           // a leaf: nothing else is locked under it
  Waiters ordinary_ GUARDED_BY(mutex_);
  Waiters reserved_ GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ GUARDED_BY(mutex_);       // last in, first out: the warmest buffer is used again
  std::vector<uint32_t> untouched_ GUARDED_BY(mutex_);  // free, and never used: the first use of each page is slow
  size_t touching_count_ GUARDED_BY(mutex_) = 0;        // free, and in neither list: they are being touched
  CondVar touch_wanted_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::jthread toucher_;
};

}  // namespace cairnfs::io
