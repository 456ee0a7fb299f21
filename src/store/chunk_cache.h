// Verified chunks that were read or written lately, in pool buffers.
//
// Queues after 2Q (Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
// Algorithm", VLDB 1994), so that reading much once does not drive out what was saved or is read again:
//  - what was read from this node's disk for the first time enters `recent`, first in, first out, of a quarter of
//    what the cache holds;
//  - what came from another node enters `passing`, the same again or less: only readers on this host want it from here,
//    while those of other hosts may still come for what is in `recent`;
//  - what was written, and what this host reads again soon after it left one of these, enters `lasting`, least recently
//    used out.
// What another node reads, which keeps it itself, is no sign of more to come: where several hosts read the same and one
// is so far behind that its chunks have left, they enter `passing`, as does what it had read and this host reads then.
// Were they kept, they would take the place of those that it comes for next.
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

// For whom a chunk is read; the later one counts where it is for several.
enum class Reader : uint8_t { kNone, kOtherNode, kThisHost };

class ChunkCache {
 public:
  ChunkCache(io::BufferPool& pool, size_t bytes_max);

  std::optional<ChunkData> Find(const Digest& digest, Reader reader);
  bool Contains(const Digest& digest);
  // A chunk that was read, from this node's disk or from another node. Small ones are copied into a shared buffer:
  // returns what the reader should use. Larger ones are kept only when they lie in pool buffers. `reader`: for whom it
  // was read; `used_by`: who of these has waited for it, and need not find it.
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
  // Gives up the oldest chunks that hold about so many buffers.
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
    Reader used_by;       // since it came; of what was fetched, who has found it here
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
  Queue& QueueToShorten() REQUIRES_LOCK(mutex_);        // REQUIRES: not empty
  void EvictOne(Items* evicted) REQUIRES_LOCK(mutex_);  // REQUIRES: not empty
  void Remember(const Item& item) REQUIRES_LOCK(mutex_);
  Reader ForgetLeft(const Digest& digest) REQUIRES_LOCK(mutex_);  // who had used it; kNone: it is not remembered
  std::optional<ChunkData> Pack(const ChunkData& data);

  io::BufferPool& pool_;
  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
  Mutex mutex_;
  std::array<Queue, 3> queues_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Items::iterator, DigestHash> by_digest_ GUARDED_BY(mutex_);
  // What left the queues other than kLasting of late after use, but for what passed by for other nodes; newest first.
  // Names only, for half as many bytes as the cache holds.
  std::list<Left> left_ GUARDED_BY(mutex_);
  size_t left_bytes_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Digest, std::list<Left>::iterator, DigestHash> left_by_digest_ GUARDED_BY(mutex_);
  Mutex pack_mutex_;
  io::BufferRef packed_ GUARDED_BY(pack_mutex_);
  size_t packed_used_ GUARDED_BY(pack_mutex_) = 0;
};

}  // namespace cairnfs::store
