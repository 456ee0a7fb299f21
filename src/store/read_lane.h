// A line of reads that nobody waits for yet. A few are on their way to the disk; the others stand in line. Each read
// that comes back starts the next, on the thread of the I/O engine, so the disk has work however late the readers come.
//
// Why few: a disk that is given much at once gives it back all at once, and has nothing to do while that is verified.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "base/thread_annotations.h"
#include "store/segment_read.h"

namespace cairnfs::store {

class ReadLane {
 public:
  using Ticket = uint64_t;
  static constexpr Ticket kNoTicket = 0;

  // `bytes_max`: bytes on their way at once. One read always is, however large.
  explicit ReadLane(size_t bytes_max) : bytes_max_(bytes_max) {}
  // REQUIRES: no read is under way or in line.
  ~ReadLane();

  // Names a read before it is started. Any thread.
  Ticket NewTicket() { return next_ticket_.fetch_add(1, std::memory_order_relaxed); }
  // As SegmentRead::Start, now or later. The lane keeps the reference while the read waits in line. Any thread.
  void Start(Ticket ticket, std::shared_ptr<SegmentRead> read, std::function<void()> done) EXCLUDES_LOCK(mutex_);
  // Somebody waits for the read: it is started now, if it still stands in line. Any thread.
  void Hurry(Ticket ticket) EXCLUDES_LOCK(mutex_);

 private:
  struct Waiting {
    Ticket ticket = kNoTicket;
    std::shared_ptr<SegmentRead> read;
    std::function<void()> done;
  };
  void Begin(Waiting waiting) EXCLUDES_LOCK(mutex_);
  void OnDone(size_t bytes) EXCLUDES_LOCK(mutex_);

  const size_t bytes_max_;
  std::atomic<Ticket> next_ticket_{kNoTicket + 1};
  Mutex mutex_;
  size_t bytes_under_way_ GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> line_ GUARDED_BY(mutex_);  // each holds buffers of the pool, and so it is bounded
};

}  // namespace cairnfs::store
