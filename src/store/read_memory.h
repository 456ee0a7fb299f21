// Memory of their own for reads that have no pool buffer: all of them when the pool is empty, and small ones always.
//
// Its total is bounded. A reader of a file may hold one chunk while it waits for the next, so a read that waited for
// free memory alone might wait for ever. Therefore, when no read is on its way, one is let in beyond the bound. Reads
// on their way wait for nothing but the disk and the threads that verify, and each that ends lets another in. A read
// that waits here holds neither memory nor buffers.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::store {

class ReadMemory {
 public:
  explicit ReadMemory(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Lets a read in: it may allocate `bytes` then. False: too much is taken. Any thread.
  bool TryEnter(size_t bytes);
  // The same, in the order of the calls. False: `start` is called once the read is let in, on any thread and perhaps
  // before this returns; it must not block.
  bool EnterOrWait(size_t bytes, std::function<void()> start);
  // To be called when a read that was let in has ended. Its memory may be held on.
  void Leave();
  void GiveBack(size_t bytes);

  size_t bytes() const;  // let in, and not given back

 private:
  struct Waiter {
    size_t bytes;
    std::function<void()> start;
  };
  bool Admit(size_t bytes) REQUIRES_LOCK(mutex_);
  std::vector<Waiter> TakeAdmitted() REQUIRES_LOCK(mutex_);

  const size_t bytes_max_;
  mutable Mutex mutex_;  // a leaf
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  size_t reads_ GUARDED_BY(mutex_) = 0;            // let in and not ended; not 0 while anybody waits
  std::deque<Waiter> waiters_ GUARDED_BY(mutex_);  // one for each chunk that a caller waits for
};

}  // namespace cairnfs::store
