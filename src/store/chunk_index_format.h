// Keys and values of the chunk index in the node's KvEngine. docs/formats/chunk-index.md.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/types.h"
#include "store/segment_format.h"

namespace cairnfs::store {

// Where a chunk's record lies.
struct Location {
  SegmentId segment;
  uint64_t offset = 0;  // of the record header in the segment file
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint8_t codec = kCodecRaw;
  uint64_t data_offset() const { return offset + kRecordHeaderBytes; }
  bool operator==(const Location&) const = default;
};

// What is kept about the index as a whole; written with every batch of entries.
struct IndexCounters {
  uint64_t chunk_count = 0;
  uint64_t unique_bytes = 0;
  uint64_t next_segment_id = 1;
  SegmentId open_segment;  // the one that was written to last, and how far it is synced
  uint64_t open_synced_end = 0;
  bool operator==(const IndexCounters&) const = default;
};

// All keys of the index lie in [kIndexBegin, kIndexEnd). The three kinds differ in length.
inline constexpr std::string_view kIndexBegin = "C";
inline constexpr std::string_view kIndexEnd = "D";
inline constexpr std::string_view kCountersKey = "C";
// Stands in place of the counters while the index is being rebuilt.
inline constexpr std::string_view kRebuildingValue = "rebuilding";
std::string ChunkKey(const Digest& digest);  // "C", 32 bytes of digest
std::string SegmentKey(SegmentId id);        // "C", u64 big-endian
std::optional<Digest> ParseChunkKey(std::string_view key);
std::optional<SegmentId> ParseSegmentKey(std::string_view key);

std::string EncodeLocation(const Location& location);
Result<Location> DecodeLocation(std::string_view value);
std::string EncodeCounters(const IndexCounters& counters);
Result<IndexCounters> DecodeCounters(std::string_view value);
std::string EncodeGeneration(const Generation& generation);
Result<Generation> DecodeGeneration(std::string_view value);

}  // namespace cairnfs::store
