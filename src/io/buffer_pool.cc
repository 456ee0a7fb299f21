#include "io/buffer_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cairnfs::io {
namespace {

constexpr size_t kHugePageBytes = 2 * kMiB;
// How long to wait for a buffer that has memory before one without is taken: about as long as a buffer's first touch
// lasts on virtual machines.
constexpr std::chrono::milliseconds kTouchPatience{5};

}  // namespace

BufferRef::BufferRef(const BufferRef& other) : pool_(other.pool_), index_(other.index_) {
  if (pool_ != nullptr) pool_->references_[index_].fetch_add(1, std::memory_order_relaxed);
}

BufferRef::BufferRef(BufferRef&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), index_(std::exchange(other.index_, 0)) {}

BufferRef& BufferRef::operator=(BufferRef other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

BufferRef::~BufferRef() {
  if (pool_ == nullptr) return;
  // Acquire-release: all that other holders did to the bytes happens before the next owner uses them.
  if (pool_->references_[index_].fetch_sub(1, std::memory_order_acq_rel) == 1) pool_->Release(index_);
}

std::byte* BufferRef::headroom() const {
  assert(pool_ != nullptr);
  return pool_->base_ + size_t{index_} * BufferPool::kBufferBytes;
}

std::byte* BufferRef::payload() const { return headroom() + BufferPool::kHeadroomBytes; }

bool BufferRef::Unique() const {
  return pool_ != nullptr && pool_->references_[index_].load(std::memory_order_acquire) == 1;
}

Result<std::unique_ptr<BufferPool>> BufferPool::Create(const Options& options) {
  const size_t count = options.size_bytes_max / kBufferBytes;
  if (count < 2 * size_t{options.reserved_count} || count == 0 || count > UINT32_MAX) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a buffer pool of " + std::to_string(options.size_bytes_max) + " bytes is too small; give it " +
                         std::to_string(2 * size_t{options.reserved_count} * kBufferBytes) + " bytes at least");
  }
  const size_t size = count * kBufferBytes;
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size > memory) {
    return MakeError(ErrorCode::kIo, "a buffer pool of " + std::to_string(size) + " bytes does not fit the " +
                                         std::to_string(memory) + " bytes of memory of this machine");
  }
  // Aligned, so that huge pages can serve all of it. The kernel pins the pages of every direct read and write, and with
  // huge pages that costs half.
  const size_t mapped = size + kHugePageBytes;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return MakeError(ErrorCode::kIo,
                     ErrnoError(errno, "mapping a buffer pool of " + std::to_string(size) + " bytes").message);
  }
  (void)madvise(mapping, mapped, MADV_HUGEPAGE);  // best effort
  (void)madvise(mapping, mapped, MADV_DONTDUMP);  // what users wrote is for no core file, which it would fill, too
  return std::unique_ptr<BufferPool>(new BufferPool(static_cast<std::byte*>(mapping), mapped, count, options));
}

BufferPool::BufferPool(std::byte* mapping, size_t mapped, size_t count, const Options& options)
    : mapping_(mapping),
      mapped_(mapped),
      base_(mapping + (kHugePageBytes - reinterpret_cast<uintptr_t>(mapping) % kHugePageBytes) % kHugePageBytes),
      count_(count),
      reserved_count_(options.reserved_count),
      first_touched_count_(options.touches_all ? count : std::min(count, kFirstTouchedCount)),
      references_(count) {
  {
    MutexLock lock(mutex_);
    free_.reserve(count);
    untouched_.reserve(count);
    for (size_t index = count; index > 0; index--) untouched_.push_back(static_cast<uint32_t>(index - 1));
    free_count_.store(count, std::memory_order_relaxed);
    NoteTouched();
  }
  toucher_ = std::jthread([this](const std::stop_token& stop) { TouchAhead(stop); });
}

BufferPool::~BufferPool() {
  toucher_.request_stop();
  {
    MutexLock lock(mutex_);
    touch_wanted_.NotifyAll();
  }
  toucher_.join();
  assert(free_count() == count_ && "a BufferRef outlives its pool");
  munmap(mapping_, mapped_);
}

BufferRef BufferPool::Take(size_t keep_count) {
  if (free_count_.load(std::memory_order_relaxed) <= keep_count) return {};
  std::vector<uint32_t>& from = free_.empty() ? untouched_ : free_;
  if (from.empty()) return {};  // the last one is being touched
  const uint32_t index = from.back();
  from.pop_back();
  free_count_.fetch_sub(1, std::memory_order_relaxed);
  NoteTouched();
  if (WantsTouching()) touch_wanted_.NotifyOne();
  references_[index].store(1, std::memory_order_relaxed);
  return BufferRef(this, index);
}

BufferRef BufferPool::WaitAndTake(size_t keep_count, Waiters BufferPool::*waiters, const GiveUp& gives_up) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  if (free_.empty() && !untouched_.empty() && count_ - lent_count() - untouched_.size() >= first_touched_count_) {
    (this->*waiters).count++;
    (this->*waiters).freed.WaitFor(mutex_, kTouchPatience);
    (this->*waiters).count--;
    if (closed_) return {};
  }
  if (BufferRef buffer = Take(keep_count)) return buffer;
  for (;;) {
    const std::chrono::milliseconds without_release = WithoutRelease(waiters);
    lock.Unlock();
    if (gives_up && gives_up(without_release)) return {};
    if (on_pressure_) on_pressure_(without_release);
    lock.Lock();
    const auto ask_again_at = Clock::Now() + kPressureInterval;
    for (auto now = ask_again_at - kPressureInterval; now < ask_again_at; now = Clock::Now()) {
      if (closed_) return {};
      if (BufferRef buffer = Take(keep_count)) {
        // The wake-up of another waiter may have come to this one.
        WakeWaiters();
        return buffer;
      }
      (this->*waiters).count++;
      (this->*waiters).freed.WaitFor(mutex_, ask_again_at - now);
      (this->*waiters).count--;
    }
  }
}

std::chrono::milliseconds BufferPool::WithoutRelease(Waiters BufferPool::*waiters) {
  const auto now = Clock::Now();
  auto& dry_since = (this->*waiters).dry_since;
  if (!dry_since) dry_since = now;
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - *dry_since);
  return passed - passed % kPressureInterval;
}

BufferRef BufferPool::Acquire(const GiveUp& gives_up) {
  return WaitAndTake(reserved_count_, &BufferPool::ordinary_, gives_up);
}

BufferRef BufferPool::AcquireReserved() { return WaitAndTake(0, &BufferPool::reserved_, nullptr); }

BufferRef BufferPool::TryAcquire() {
  MutexLock lock(mutex_);
  return closed_ ? BufferRef() : Take(reserved_count_);
}

void BufferPool::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  ordinary_.freed.NotifyAll();
  reserved_.freed.NotifyAll();
}

void BufferPool::WakeWaiters() {
  const size_t free_count = free_count_.load(std::memory_order_relaxed);
  if (free_count > 0) {
    reserved_.dry_since.reset();
    if (reserved_.count > 0) reserved_.freed.NotifyOne();
  }
  if (free_count > reserved_count_) {
    ordinary_.dry_since.reset();
    if (ordinary_.count > 0) ordinary_.freed.NotifyOne();
  }
}

void BufferPool::Release(uint32_t index) {
  MutexLock lock(mutex_);
  free_.push_back(index);
  free_count_.fetch_add(1, std::memory_order_relaxed);
  WakeWaiters();
}

// Buffers without memory first, and of the others those that were free for longest.
std::optional<MemoryLoan> BufferPool::Borrow(uint64_t bytes) {
  if (bytes > lendable_bytes()) return std::nullopt;
  const uint64_t count = (bytes + kBufferBytes - 1) / kBufferBytes;
  std::vector<uint32_t> lent;
  size_t without_memory = 0;
  {
    MutexLock lock(mutex_);
    const size_t keep_count = reserved_count_ + touched_count() / 8;
    if (closed_ || count > count_ / 2 - lent_count() || free_count() < keep_count + count) return std::nullopt;
    if (untouched_.size() + free_.size() < count) return std::nullopt;  // the others are being touched
    for (std::vector<uint32_t>* from : {&untouched_, &free_}) {
      const auto taken = static_cast<ptrdiff_t>(std::min<size_t>(count - lent.size(), from->size()));
      lent.insert(lent.end(), from->begin(), from->begin() + taken);
      from->erase(from->begin(), from->begin() + taken);
      if (from == &untouched_) without_memory = lent.size();
    }
    free_count_.fetch_sub(count, std::memory_order_relaxed);
    lent_count_.fetch_add(count, std::memory_order_relaxed);
    NoteTouched();
  }
  for (size_t i = without_memory; i < lent.size(); i++) {
    // The system has all of a huge page once the buffers that share it are lent, or when it needs memory.
    (void)madvise(base_ + size_t{lent[i]} * kBufferBytes, kBufferBytes, MADV_DONTNEED);
  }
  return MemoryLoan(this, std::move(lent));
}

void BufferPool::TakeBack(const std::vector<uint32_t>& lent) {
  MutexLock lock(mutex_);
  // To be used after all others.
  untouched_.insert(untouched_.begin(), lent.begin(), lent.end());
  free_count_.fetch_add(lent.size(), std::memory_order_relaxed);
  lent_count_.fetch_sub(lent.size(), std::memory_order_relaxed);
  NoteTouched();
  if (WantsTouching()) touch_wanted_.NotifyOne();
  ordinary_.freed.NotifyAll();
  reserved_.freed.NotifyAll();
  WakeWaiters();
}

MemoryLoan::~MemoryLoan() {
  if (pool_ != nullptr && !lent_.empty()) pool_->TakeBack(lent_);
}

void MemoryLoan::Add(MemoryLoan more) {
  assert(pool_ == nullptr || more.pool_ == nullptr || pool_ == more.pool_);
  if (pool_ == nullptr) pool_ = more.pool_;
  lent_.insert(lent_.end(), more.lent_.begin(), more.lent_.end());
  more.lent_.clear();
}

size_t MemoryLoan::bytes() const { return lent_.size() * BufferPool::kBufferBytes; }

void BufferPool::Touch(std::byte* begin) {
#if defined(MADV_POPULATE_WRITE)
  // Unlike a store, this reports memory that cannot be had (EFAULT, ENOMEM) instead of ending the process.
  if (madvise(begin, kBufferBytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) {
    spdlog::warn("memory for the buffer pool is short: {}", std::strerror(errno));
    return;
  }
#endif
  for (size_t offset = 0; offset < kBufferBytes; offset += kPageBytes) {
    *reinterpret_cast<volatile std::byte*>(begin + offset) = std::byte{0};
  }
}

bool BufferPool::HasFreeLessThan(size_t divisor) const {
  return ready_count() < reserved_count_ + touched_count() / divisor;
}

bool BufferPool::WantsTouching() const {
  if (untouched_.empty()) return false;
  const bool is_first = count_ - lent_count() - untouched_.size() < first_touched_count_;
  return is_first || ready_count() < touched_count() / 2;
}

void BufferPool::NoteTouched() {
  const size_t touched = count_ - lent_count() - untouched_.size() - touching_count_;
  const size_t first_count = std::min(first_touched_count_, count_ - lent_count());
  touched_count_.store(std::max(touched, first_count), std::memory_order_relaxed);
}

void BufferPool::TouchAhead(const std::stop_token& stop) {
  pthread_setname_np(pthread_self(), "pool-touch");
  (void)setpriority(PRIO_PROCESS, 0, 19);  // of this thread: nobody waits for its work
  std::vector<uint32_t> batch;
  MutexLock lock(mutex_);
  for (;;) {
    while (!WantsTouching() && !stop.stop_requested()) touch_wanted_.Wait(mutex_);
    if (stop.stop_requested()) return;
    // Takes the lock seldom: a thread of the lowest priority may keep it for long.
    while (WantsTouching() && batch.size() < std::clamp<size_t>(count_ / 64, 1, 16)) {
      batch.push_back(untouched_.back());
      untouched_.pop_back();
    }
    touching_count_ = batch.size();
    lock.Unlock();
    // While they are touched, the buffers count as free but are in neither list: nobody else can have them.
    for (uint32_t index : batch) Touch(base_ + size_t{index} * kBufferBytes);
    lock.Lock();
    free_.insert(free_.end(), batch.begin(), batch.end());
    batch.clear();
    touching_count_ = 0;
    NoteTouched();
    WakeWaiters();
  }
}

}  // namespace cairnfs::io
