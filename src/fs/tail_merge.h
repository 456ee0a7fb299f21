// The end of a file that grows by little at a time: each sync, and each close, stores what came since the one before.
// The pieces become larger chunks as more of them come, and where the cuts of a file written at once would be, the
// chunks end there. docs/decisions/sync-rounds.md.
#pragma once

#include <functional>
#include <string>

#include "chunking/chunker.h"
#include "fs/extent_map.h"

namespace cairnfs::fs {

// Bytes that are cut up to `start` only, and go on growing.
struct GrowingTail {
  uint64_t start, stored_end, end;  // what lies before `stored_end` is stored
};
// From where on a sync stores the tail. Where little is new, that joins pieces of about its length.
uint64_t TailStart(const ExtentMap& extents, const GrowingTail& tail);

struct TailMerge {
  uint64_t size = 0;  // of the file: where its last extent ends
  chunking::ChunkParams params;
  std::function<Result<std::string>(const Extent&)> read;  // its whole chunk
  std::function<Result<Digest>(std::string_view)> put;
};

// Whether what lies before `offset` ends with pieces that are shorter than any chunk within a file, where no cut can
// be: with many, or with as many bytes as a chunk has.
bool EndsInShortPieces(const ExtentMap& extents, uint64_t offset, const TailMerge& merge);

// Stores a last extent and those before it as larger chunks, unless that would write much more than what came since
// they were stored: so a file that grows in N steps keeps about log N pieces, and each of its bytes is written log N
// times. What cannot be read stays as it is, and what lies before it. Returns the sum of the lengths replaced. Blocks
// as `read` and `put` do.
uint64_t MergeTail(ExtentMap& extents, const TailMerge& merge);

}  // namespace cairnfs::fs
