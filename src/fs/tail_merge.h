// The end of a file that grows by little at a time: each sync, and each close, stores what came since the one before.
// The pieces become larger chunks as more of them come, and where the cuts of a file written at once would be, the
// chunks end there. docs/decisions/sync-rounds.md.
#pragma once

#include <vector>

#include "chunking/chunker.h"
#include "fs/extent_map.h"

namespace cairnfs::fs {

// Whether a piece of the end of a file is stored again with what follows it.
bool IsJoined(uint64_t piece_bytes, uint64_t following_bytes);

struct TailMerge {
  uint64_t size = 0;        // of the file: where its last extent ends
  uint64_t grown_from = 0;  // what it was in the last record: a piece may end there
  chunking::ChunkParams params;
};

// Stores a last extent and those before it as larger chunks, unless that would write much more than what came since
// they were stored: so a file that grows in N steps keeps about log N pieces, and each of its bytes is written log N
// times. Chunks are read from `readable`; what is not there stays as it is. Returns the sum of the lengths replaced.
// Blocks.
uint64_t MergeTail(ExtentMap& extents, const TailMerge& merge, store::ChunkStore& readable, ChunkSink& sink);

}  // namespace cairnfs::fs
