// Verified chunks that were read or written lately, in pool buffers.
//
// Queues after 2Q (Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
// Algorithm", VLDB 1994), so that reading much once does not drive out what was saved or is read again:
//  - what was read from this node's disk for the first time enters `recent`, first in, first out, of a quarter of
//    what the cache holds;
//  - what came from another node enters `fetched`, the same again: only readers on this host get it from there, while
//    those of other hosts may still come for what is in `recent`;
//  - what was written, and what is read again soon after it left one of these, enters `lasting`, least recently used
//    out.
//
// It never starves the pool: it keeps at most bytes_max, gives up more bytes than it takes while the pool is short, and
// gives buffers up when Trim or MakeRoom asks. It counts bytes; a buffer stays taken as long as any chunk in it is
// kept. So a chunk that would keep a whole buffer for a few bytes is packed with others of its kind.
#pragma once

#include <array>
#include <list>
#include <optional>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "store/chunk_store.h"

namespace cairnfs::store {

// A pool buffer of a megabyte would be wasted on a chunk of less: such are read into memory of their own, and packed
// together to be kept.
inline constexpr size_t kSmallChunkBytesMax = 128 * kKiB;

class ChunkCache {
 public:
  ChunkCache(io::BufferPool& pool, size_t bytes_max);

  std::optional<ChunkData> Find(const Digest& digest);
  bool Contains(const Digest& digest);
  // A chunk that was read, from this node's disk or from another node. Small ones are copied into a shared buffer:
  // returns what the reader should use. Larger ones are kept only when they lie in pool buffers.
  ChunkData InsertRead(const Digest& digest, ChunkData data) { return Keep(digest, std::move(data), kRecent); }
  ChunkData InsertFetched(const Digest& digest, ChunkData data) { return Keep(digest, std::move(data), kFetched); }
  // A chunk just put: keeps the caller's slices, if they are of the pool.
  void InsertWritten(const Digest& digest, std::span<const io::Slice> slices, size_t size);

  // Gives up chunks until the pool is no longer short, or all are gone.
  void Trim();
  // Gives up the oldest chunks that hold about so many buffers.
  void MakeRoom(size_t buffer_count);
  void Clear();
  bool empty() const { return bytes_.load(std::memory_order_relaxed) == 0; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  enum QueueName { kRecent, kFetched, kLasting };
  struct Item {
    Digest digest;
    ChunkData data;
    QueueName queue;
    bool used;  // found since it came
  };
  using Items = std::list<Item>;
  struct Queue {
    Items items;  // the newest first, or in kLasting the one used last
    size_t bytes = 0;
  };
  struct Left {
    Digest digest;
    size_t size;
  };
  bool PoolIsShort() const { return pool_.free_count() < pool_.reserved_count() + pool_.count() / 4; }
  ChunkData Keep(const Digest& digest, ChunkData data, QueueName queue);
  void Insert(const Digest& digest, const ChunkData& data, QueueName queue);
  Queue& QueueToShorten() REQUIRES_LOCK(mutex_);        // REQUIRES: not empty
  void EvictOne(Items* evicted) REQUIRES_LOCK(mutex_);  // REQUIRES: not empty
  void Remember(const Digest& digest, size_t size) REQUIRES_LOCK(mutex_);
  bool ForgetLeft(const Digest& digest) REQUIRES_LOCK(mutex_);
  std::optional<ChunkData> Pack(const ChunkData& data);

  io::BufferPool& pool_;
  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
  Mutex mutex_;
  std::array<Queue, 3> queues_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Items::iterator, DigestHash> by_digest_ GUARDED_BY(mutex_);
  // What left the queues other than kLasting of late after use, newest first: names only, for half as many bytes as the
  // cache holds.
  std::list<Left> left_ GUARDED_BY(mutex_);
  size_t left_bytes_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Digest, std::list<Left>::iterator, DigestHash> left_by_digest_ GUARDED_BY(mutex_);
  Mutex pack_mutex_;
  io::BufferRef packed_ GUARDED_BY(pack_mutex_);
  size_t packed_used_ GUARDED_BY(pack_mutex_) = 0;
};

}  // namespace cairnfs::store
