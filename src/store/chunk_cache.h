// Verified chunks that were read or written lately, in pool buffers.
//
// Queues after 2Q (Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
// Algorithm", VLDB 1994), so that reading much once does not drive out what was saved or is read again:
//  - `recent`: chunks that were read from this node's disk for the first time. First in, first out; a quarter of the
//    cache.
//  - `passing`: chunks that came from another node. First in, first out; as large as `recent` or smaller, because only
//    readers on this host want these from here, while readers on all hosts may come for those in `recent`.
//  - `lasting`: chunks that were written, and those that this host reads again soon after they left one of the others.
//    The least recently used goes first.
// A read by another node is no sign of more to come, since that node keeps the chunk itself. When several hosts read
// the same and one is so far behind that its chunks have left here, these enter `passing` again, and so do chunks that
// it had read when this host reads them. Kept for longer, they would take the place of the chunks that it comes for
// next.
//
// The cache never starves the pool. It keeps at most bytes_max, gives up more bytes than it takes while the pool is
// short, and gives buffers up when Trim or MakeRoom asks. It counts bytes, but a buffer stays taken as long as any
// chunk in it is kept. So small chunks are packed into buffers that they share.
#pragma once

#include <array>
#include <list>
#include <optional>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "store/chunk_store.h"

namespace cairnfs::store {

// Smaller chunks would waste a pool buffer of a megabyte. They are read into memory of their own, and packed together
// to be kept.
inline constexpr size_t kSmallChunkBytesMax = 128 * kKiB;

// Who reads a chunk. Where several do, the value that stands last here counts.
enum class Reader : uint8_t { kNone, kOtherNode, kThisHost };

class ChunkCache {
 public:
  ChunkCache(io::BufferPool& pool, size_t bytes_max);

  std::optional<ChunkData> Find(const Digest& digest, Reader reader);
  bool Contains(const Digest& digest);
  // A chunk that was read, from this node's disk or from another node. Small ones are copied into a shared buffer:
  // returns what the reader should use. Larger ones are kept only when they lie in pool buffers. `reader`: who it was
  // read for. `used_by`: who waited for it and has it already.
  ChunkData InsertRead(const Digest& digest, ChunkData data, Reader reader, Reader used_by) {
    return Keep(digest, std::move(data), kRecent, reader, used_by);
  }
  ChunkData InsertFetched(const Digest& digest, ChunkData data, Reader used_by) {
    return Keep(digest, std::move(data), kPassing, Reader::kThisHost, used_by);
  }
  // A chunk just put: keeps the caller's slices, if they are of the pool.
  void InsertWritten(const Digest& digest, std::span<const io::Slice> slices, size_t size);

  // Gives up chunks until the pool is no longer short, or all are gone.
  void Trim();
  // Gives up the oldest chunks, until about `buffer_count` buffers are free of them.
  void MakeRoom(size_t buffer_count);
  void Clear();
  bool empty() const { return bytes_.load(std::memory_order_relaxed) == 0; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  enum QueueName { kRecent, kPassing, kLasting };
  struct Item {
    Digest digest;
    ChunkData data;
    QueueName queue;
    Reader used_by;       // who has used it since it came; a chunk fetched ahead: who has found it here
    bool is_handed_over;  // somebody waited for it as it came
  };
  using Items = std::list<Item>;
  struct Queue {
    Items items;  // the newest first, or in kLasting the one used last
    size_t bytes = 0;
  };
  struct Left {
    Digest digest;
    size_t size;
    Reader used_by;
  };
  bool PoolIsShort() const { return pool_.HasFreeLessThan(4); }
  ChunkData Keep(const Digest& digest, ChunkData data, QueueName queue, Reader reader, Reader used_by);
  void Insert(const Digest& digest, const ChunkData& data, QueueName queue, Reader reader, Reader used_by);
  Queue& QueueToShorten() REQUIRES_LOCK(mutex_);        // not empty, if the cache is not
  void EvictOne(Items* evicted) REQUIRES_LOCK(mutex_);  // REQUIRES: the cache is not empty
  void Remember(const Item& item) REQUIRES_LOCK(mutex_);
  Reader ForgetLeft(const Digest& digest) REQUIRES_LOCK(mutex_);  // who had used it; kNone: it is not remembered
  std::optional<ChunkData> Pack(const ChunkData& data);

  io::BufferPool& pool_;
  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
  Mutex mutex_;
  std::array<Queue, 3> queues_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Items::iterator, DigestHash> by_digest_ GUARDED_BY(mutex_);
  // Names of chunks that were used and have left `recent` or `passing` lately, but for those that passed by for other
  // nodes. Newest first; for half as many bytes as the cache holds.
  std::list<Left> left_ GUARDED_BY(mutex_);
  size_t left_bytes_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Digest, std::list<Left>::iterator, DigestHash> left_by_digest_ GUARDED_BY(mutex_);
  Mutex pack_mutex_;
  io::BufferRef packed_ GUARDED_BY(pack_mutex_);
  size_t packed_used_ GUARDED_BY(pack_mutex_) = 0;
};

}  // namespace cairnfs::store
