// KnownRuns: which runs of a chunk's bytes lie in chunks that this host saved lately, cut in other places there.
//
// After N. Spring and D. Wetherall, "A protocol-independent technique for eliminating redundant network traffic"
// (SIGCOMM 2000): an anchor that was seen before says where equal bytes may lie, and the match is then grown byte by
// byte in both directions. So no digest of a piece is trusted, and no byte at the edge of a run is lost.
// Where a run ends with the stored chunk, the first or last anchor of its neighbour tells where it goes on.
#pragma once

#include <optional>
#include <vector>

#include "fs/anchor_table.h"
#include "fs/recipe.h"
#include "fs/sliced_bytes.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

// Shorter runs are not worth an extent in the recipe, and a read of their own.
inline constexpr size_t kRunBytesMin = 64 * kKiB;
// Nor are those of less than this share of the stored chunk, all of which stays for the sake of the run.
inline constexpr size_t kRunShareMin = 8;

// The fingerprint of the anchor at `offset`. REQUIRES: kAnchorWindowBytes <= offset <= bytes.size().
Anchor AnchorAt(const SlicedBytes& bytes, size_t offset);

struct KnownRun {
  Extent extent;  // its offset is counted from the beginning of the chunk
  store::ChunkPin pin;
};

// For one chunk, on one thread. Reads stored chunks and waits for them, one at a time.
class KnownRuns {
 public:
  // All outlive it. What lies on other hosts is not looked at.
  KnownRuns(const SlicedBytes& bytes, const Author& author, AnchorTable& table, store::ChunkStore& chunks,
            store::LocalChunkStore& local)
      : bytes_(bytes), author_(author), table_(table), chunks_(chunks), local_(local) {}

  // In order, not overlapping. `places` are what the table said of each of the anchors, which rise.
  std::vector<KnownRun> Find(std::span<const Anchor> anchors,
                             std::span<const std::optional<AnchorTable::Place>> places);

 private:
  std::optional<Extent> Match(size_t at, const AnchorTable::Place& place, size_t begin, size_t end);
  std::optional<Extent> MatchAnchor(size_t at, size_t begin, size_t end);
  void FollowBack(Extent run, size_t begin);
  size_t FollowOn(Extent run);

  const SlicedBytes& bytes_;
  const Author author_;
  AnchorTable& table_;
  store::ChunkStore& chunks_;
  store::LocalChunkStore& local_;
  std::vector<KnownRun> runs_;
  unsigned vain_ = 0;  // chunks that were read, and not used
};

}  // namespace cairnfs::fs
