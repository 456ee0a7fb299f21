// Pins of chunks that are kept on several nodes: how many there are of each, the chunk's size, and the pin of this
// node's own copy, which lives as long as there are any. Any thread.
#pragma once

#include <algorithm>
#include <cassert>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "store/chunk_store.h"

namespace cairnfs::cluster {

class ChunkPins {
 public:
  // `store` gives it back by Release. `size`: as of ChunkStore::Pin.
  store::ChunkPin Make(store::ChunkStore* store, const Digest& digest, size_t size) EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    Record& record = pins_[digest];
    ++record.count;
    record.size = std::max(record.size, size);
    return {store, digest};
  }
  void Release(const Digest& digest) EXCLUDES_LOCK(mutex_) {
    store::ChunkPin local;  // ends after the lock
    MutexLock lock(mutex_);
    const auto found = pins_.find(digest);
    assert(found != pins_.end());
    if (--found->second.count > 0) return;
    local = std::move(found->second.local);
    pins_.erase(found);
    lock.Unlock();
  }
  bool IsPinned(const Digest& digest) EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    return pins_.contains(digest);
  }
  struct Pinned {
    Digest digest;
    size_t size;
  };
  // Those that a record may come to name.
  std::vector<Pinned> ToBeNamed() EXCLUDES_LOCK(mutex_) {
    std::vector<Pinned> pinned;
    MutexLock lock(mutex_);
    for (const auto& [digest, record] : pins_) {
      if (record.size > 0) pinned.push_back({digest, record.size});
    }
    return pinned;
  }
  // Without effect where the chunk has no pin.
  void KeepLocal(const Digest& digest, store::ChunkPin pin) EXCLUDES_LOCK(mutex_) {
    MutexLock lock(mutex_);
    if (const auto found = pins_.find(digest); found != pins_.end()) std::swap(found->second.local, pin);
    lock.Unlock();
  }

 private:
  struct Record {
    uint32_t count = 0;
    size_t size = 0;
    store::ChunkPin local;
  };
  Mutex mutex_;
  std::unordered_map<Digest, Record, DigestHash> pins_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::cluster
