// AnchorTable: where in the chunks that this host saved lately the bytes before an anchor lie.
//
// An anchor (chunking/chunker.h) is a place that equal data has in common. What stands in the table is a hint: the
// bytes may differ, and the chunk may be collected. So who finds something there compares the bytes.
//
// Memory is bounded: the chunks are a ring, and the anchors of those that have left it count no more. A full bucket
// gives up the anchor that was noted first. Docs: docs/decisions/anchors.md.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::fs {

// An anchor is told from others by so many bytes before it.
inline constexpr size_t kAnchorWindowBytes = 512;

struct Anchor {
  uint32_t offset = 0;       // how many bytes of the chunk lie before it, kAnchorWindowBytes at least
  uint64_t fingerprint = 0;  // a hash of the kAnchorWindowBytes before it
};

class AnchorTable {
 public:
  struct Place {
    Digest digest;
    uint32_t chunk_size = 0;
    uint32_t offset = 0;  // of the anchor in the chunk
  };

  // Takes so many bytes, as far as it comes to be used, and knows the chunks saved last: about 4 GiB for each megabyte.
  explicit AnchorTable(size_t bytes_max);

  // Any thread. What one user has written is found for that user only: a match is grown byte by byte,
  // and would tell others what they could only guess.
  void Remember(uint32_t writer, const Digest& digest, uint32_t chunk_size, std::span<const Anchor> anchors);
  std::optional<Place> Find(uint32_t writer, uint64_t fingerprint);
  std::vector<std::optional<Place>> FindAll(uint32_t writer, std::span<const Anchor> anchors);

  size_t chunk_count_max() const { return chunks_.size(); }

 private:
  struct Chunk {
    Digest digest;
    uint32_t size = 0;
    uint32_t writer = 0;
  };
  struct Entry {
    uint64_t tag : 20;     // of the fingerprint
    uint64_t number : 20;  // of the chunk, the lower bits; 0: no entry
    uint64_t offset : 24;
  };
  static constexpr uint32_t kNumberMask = (1 << 20) - 1;
  static constexpr size_t kChunksMax = (kNumberMask + 1) / 2;
  static constexpr size_t kEntriesPerBucket = 8;
  struct Bucket {
    Entry entries[kEntriesPerBucket];
  };
  struct Free {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };

  std::span<Entry> BucketOf(uint64_t fingerprint) REQUIRES_LOCK(mutex_);
  // How many chunks were remembered since.
  uint32_t AgeOf(const Entry& entry) const REQUIRES_LOCK(mutex_) { return (last_number_ - entry.number) & kNumberMask; }
  Chunk& ChunkOf(const Entry& entry) REQUIRES_LOCK(mutex_) { return ChunkOf(last_number_ - AgeOf(entry)); }
  Chunk& ChunkOf(uint32_t number) REQUIRES_LOCK(mutex_) { return chunks_[number % chunks_.size()]; }
  std::optional<Place> FindLocked(uint32_t writer, uint64_t fingerprint) REQUIRES_LOCK(mutex_);
  Entry* FindEntry(uint32_t writer, uint64_t fingerprint) REQUIRES_LOCK(mutex_);
  void Note(uint32_t writer, const Anchor& anchor) REQUIRES_LOCK(mutex_);  // of the last chunk

  const size_t bucket_count_;
  Mutex mutex_;  // a leaf
  std::unique_ptr<Bucket[], Free> buckets_ GUARDED_BY(mutex_);
  std::vector<Chunk> chunks_;                    // a ring, by number; the elements are guarded too
  uint32_t last_number_ GUARDED_BY(mutex_) = 0;  // given to a chunk; never ends in 20 zeros again
};

}  // namespace cairnfs::fs
