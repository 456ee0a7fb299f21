// Compaction: copies what is live in a segment to the open one, points the index there, frees the segment.
//
// The order that keeps a crash harmless: the copies are synced, then the index entries change, then the engine is
// synced, then the files are freed. Until the last step both places hold the chunk.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/context.h"
#include "store/chunk_index.h"
#include "store/local_chunk_store.h"
#include "store/segment.h"
#include "store/segment_writer.h"

namespace cairnfs::store {

struct SegmentUse {
  uint64_t live_bytes = 0;  // of records that the index names, headers included
  uint64_t live_count = 0;
};
using SegmentUses = std::map<uint64_t, SegmentUse>;

// A segment, and the index entries that name it, by offset.
struct NamedSegment {
  SegmentPtr segment;
  std::vector<ChunkIndex::Entry> entries;
};
using NamedSegments = std::vector<NamedSegment>;
Result<NamedSegments> CollectEntries(ChunkIndex& index, std::span<const SegmentPtr> segments);

bool IsWasteful(uint64_t waste_bytes, uint64_t total_bytes, double dead_share_min);

class Compaction {
 public:
  struct Parts {  // all outlive it
    ChunkIndex& index;
    SegmentSet& segments;
    SegmentWriter& writer;
    std::function<Status()> sync;                    // of the store
    std::function<void(const Error&)> note_damaged;  // a segment that stays as it is
    uint64_t batch_bytes;                            // that are copied before a sync
  };
  struct Order {
    const Context& context;
    const SweepOptions& options;
    SweepProgress& progress;
  };
  Compaction(Parts parts, const Order& order) : at_(std::move(parts)), order_(order) {}

  // `uses` says how much of each is live, about. The first error ends it; what was copied by then counts.
  Status Run(std::vector<SegmentPtr> chosen, SegmentUses uses);

 private:
  bool IsWorthMoving(const NamedSegment& segment) const;
  Status MoveAll(NamedSegments& segments);
  Status Copy(const NamedSegment& segment);
  Status CopyChunk(const ChunkIndex::Entry& entry, const Result<ByteSpan>& record);
  // The engine says so too; a copy that is only pending might be lost, so it does not count.
  bool StillNamed(const ChunkIndex::Entry& entry);
  Status FinishBatch();

  const Parts at_;
  const Order order_;
  Clock::time_point throttled_until_ = Clock::Now();
  // Copies whose index entries still name the old place, and segments that are empty once these entries change.
  std::vector<ChunkIndex::Move> moves_;
  std::vector<SegmentId> emptied_;
  uint64_t bytes_ = 0;
};

}  // namespace cairnfs::store
