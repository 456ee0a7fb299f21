// Verified chunks that were read or written lately, in pool buffers, least recently used first out.
//
// It never starves the pool: it keeps at most bytes_max, takes nothing while the pool is short, and gives buffers up
// when Trim or MakeRoom asks. A chunk that would keep a whole buffer for a few bytes is packed with others of its kind.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "store/chunk_store.h"

namespace cairnfs::store {

class ChunkCache {
 public:
  ChunkCache(io::BufferPool& pool, size_t bytes_max);

  std::optional<ChunkData> Find(const Digest& digest);
  bool Contains(const Digest& digest);
  // A chunk that was read into buffers of its own. Small ones are copied into a shared buffer: returns what the reader
  // should use.
  ChunkData InsertRead(const Digest& digest, ChunkData data);
  // A chunk just put: keeps the caller's slices, if the pool has plenty free.
  void InsertWritten(const Digest& digest, std::span<const io::Slice> slices, size_t size);

  // Gives up chunks until the pool is no longer short, or all are gone.
  void Trim();
  // Gives up the oldest chunks that hold about so many buffers.
  void MakeRoom(size_t buffer_count);
  void Clear();
  bool empty() const { return bytes_.load(std::memory_order_relaxed) == 0; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  struct Item {
    Digest digest;
    ChunkData data;
    size_t charge;
  };
  using Items = std::list<Item>;
  bool PoolIsShort() const { return pool_.free_count() < pool_.count() / 4; }
  void Insert(const Digest& digest, const ChunkData& data, size_t charge);
  void EvictOldest(Items* evicted) REQUIRES_LOCK(mutex_);
  std::optional<ChunkData> Pack(const ChunkData& data);

  io::BufferPool& pool_;
  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
  Mutex mutex_;
  Items items_ GUARDED_BY(mutex_);  // newest first
  std::unordered_map<Digest, Items::iterator, DigestHash> by_digest_ GUARDED_BY(mutex_);
  Mutex pack_mutex_;
  io::BufferRef packed_ GUARDED_BY(pack_mutex_);
  size_t packed_used_ GUARDED_BY(pack_mutex_) = 0;
};

}  // namespace cairnfs::store
