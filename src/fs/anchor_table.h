// AnchorTable: where in the chunks that this host saved lately the bytes before an anchor lie.
//
// An anchor (chunking/chunker.h) is a place that equal data has in common. What stands in the table is a hint: the
// bytes may differ, and the chunk may be collected. So who finds something there compares the bytes.
//
// Memory is bounded, and taken as it fills: chunks and their anchors stand in a few generations, and the oldest gives
// its place to the next. A full bucket gives up the anchor that was noted first. Docs: docs/decisions/anchors.md.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "base/types.h"
#include "chunking/digest.h"

namespace cairnfs::fs {

// An anchor is told from others by so many bytes before it.
inline constexpr size_t kAnchorWindowBytes = 512;

struct Anchor {
  uint32_t offset = 0;       // how many bytes of the chunk lie before it, kAnchorWindowBytes at least
  uint64_t fingerprint = 0;  // a hash of the kAnchorWindowBytes before it
};

// Who wrote bytes, and for whom their chunks are stored.
struct Author {
  uint32_t writer = 0;  // uid
  chunking::Owner owner;
  bool operator==(const Author&) const = default;
};

class AnchorTable {
 public:
  struct Place {
    Digest digest;
    uint32_t chunk_size = 0;
    uint32_t offset = 0;  // of the anchor in the chunk
  };

  // Takes so many bytes, as far as it comes to be used, and knows the chunks saved last: seven eighths of
  // chunk_count_max at least, about 4 GiB for each megabyte.
  explicit AnchorTable(size_t bytes_max);

  // Any thread. What one user has written is found for that user only: a match is grown byte by byte, and would tell
  // others what they could only guess. And it is found for chunks of the same owner only.
  void Remember(const Author& author, const Digest& digest, uint32_t chunk_size, std::span<const Anchor> anchors);
  std::optional<Place> Find(const Author& author, uint64_t fingerprint);
  std::vector<std::optional<Place>> FindAll(const Author& author, std::span<const Anchor> anchors);

  size_t chunk_count_max() const { return generation_count_max_ * generation_chunks_; }

 private:
  struct Chunk {
    Digest digest;
    uint32_t size = 0;
    Author author;
  };
  struct Entry {
    uint64_t tag : 20;     // of the fingerprint
    uint64_t number : 20;  // of the chunk in its generation, from 1 on; 0: no entry
    uint64_t offset : 24;
  };
  static constexpr size_t kEntriesPerBucket = 8;
  struct Bucket {
    Entry entries[kEntriesPerBucket];
  };
  struct Free {
    void operator()(Bucket* buckets) const { std::free(buckets); }
  };
  struct Generation {
    std::vector<Chunk> chunks;
    std::unique_ptr<Bucket[], Free> buckets;
  };
  struct Found {
    Generation* generation = nullptr;  // null: nowhere
    Entry* entry = nullptr;
    const Chunk& chunk() const { return generation->chunks[entry->number - 1]; }
  };

  std::span<Entry> BucketOf(Generation& generation, uint64_t fingerprint) const;
  Entry* FindIn(Generation& generation, const Author& author, uint64_t fingerprint) const;  // null: not there
  Found FindLocked(const Author& author, uint64_t fingerprint) REQUIRES_LOCK(mutex_);  // in the youngest that has it
  static std::optional<Place> PlaceOf(const Found& found);
  bool IsYoung(const Generation& generation) const REQUIRES_LOCK(mutex_);
  // The one that takes the next chunk.
  Generation& Current() REQUIRES_LOCK(mutex_);
  void Note(Generation& generation, const Author& author, const Anchor& anchor) const;  // of its last chunk

  const size_t generation_count_max_, generation_chunks_, bucket_count_;  // the last two: of one generation
  Mutex mutex_;                                                           // a leaf
  std::vector<Generation> generations_ GUARDED_BY(mutex_);                // the oldest first
};

}  // namespace cairnfs::fs
