// CollectionWork: what a collection does, and whether another host calls for one. When one is due is the Collector's.
#pragma once

#include <atomic>
#include <string>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

// How far a collection is. Any thread.
struct CollectionProgress {
  std::atomic<uint64_t> inodes_marked{0};
  store::SweepProgress sweep;

  void SetPhase(std::string text) EXCLUDES_LOCK(mutex) {
    MutexLock lock(mutex);
    phase = std::move(text);
  }
  std::string Phase() const EXCLUDES_LOCK(mutex) {
    MutexLock lock(mutex);
    return phase;
  }
  void Reset() {
    for (auto* counter : {&inodes_marked, &sweep.chunks_seen, &sweep.chunks_total, &sweep.chunks_freed,
                          &sweep.bytes_freed, &sweep.segments_compacted, &sweep.segments_freed, &sweep.bytes_moved}) {
      counter->store(0);
    }
  }
  mutable Mutex mutex;
  std::string phase GUARDED_BY(mutex) = "idle";
};

// All functions: the collector's thread, but for Release.
class CollectionWork {
 public:
  virtual ~CollectionWork() = default;
  // Frees what no record names by now, at no more than so many moved bytes a second (0: unbounded). kInterrupted: the
  // context expired.
  virtual Status Collect(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) = 0;
  // Whether another host calls for a collection. Asked all the time.
  virtual bool IsCalled(const Context& /*context*/) { return false; }
  // Takes part in that one. Whether it has freed what there was.
  virtual Result<bool> TakePart(const Context& /*context*/, uint64_t /*bytes_per_second_max*/,
                                CollectionProgress& /*progress*/) {
    return false;
  }
  // Of so many chunks on this node, of which files name so many: those that Collect would free.
  virtual uint64_t CountFree(uint64_t stored, uint64_t named) const = 0;
  // What Collect would keep and free.
  virtual Result<store::LiveTotals> Count(const Context& context) = 0;
  // For the next process: so many bytes were freed and not collected. Take forgets them.
  virtual Status NoteUncollected(uint64_t bytes) = 0;
  virtual Result<uint64_t> TakeUncollected() = 0;
  // Any thread. An operator allows collections again after the metadata went back to an older state.
  virtual Status Release() = 0;
};

}  // namespace cairnfs::fs
