// The bytes of a segment file: one header block, then records back to back. docs/formats/segment.md.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::store {

inline constexpr size_t kSegmentHeaderBytes = kPageBytes;
inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr size_t kRecordHeaderBytes = 56;
inline constexpr size_t kRecordAlignment = 8;
inline constexpr uint8_t kCodecRaw = 0;
// Longest chunk. A record of it spans two staging windows at most.
inline constexpr size_t kChunkBytesMax = 4 * kMiB - 2 * kPageBytes;

// Random, drawn anew each time a segment file is put to use. Every record's checksum covers it, so what an earlier
// life of the file left behind is never taken for a record.
using Generation = std::array<std::byte, 16>;
Generation RandomGeneration();

struct SegmentHeader {
  SegmentId id;
  Generation generation{};
  uint64_t size_bytes = 0;  // of the file when it was put to use, this header included
  bool operator==(const SegmentHeader&) const = default;
};

struct RecordHeader {
  uint8_t codec = kCodecRaw;
  uint32_t raw_bytes = 0;     // of the chunk
  uint32_t stored_bytes = 0;  // that follow the record header
  Digest digest;
  bool operator==(const RecordHeader&) const = default;
};

// REQUIRES: block.size() == kSegmentHeaderBytes.
void EncodeSegmentHeader(const SegmentHeader& header, MutableByteSpan block);
// kCorrupt says which field is wrong; kNotSupported for a newer version.
Result<SegmentHeader> DecodeSegmentHeader(ByteSpan block);
// What a damaged header has in that field. REQUIRES: block.size() >= kSegmentHeaderBytes.
Generation GenerationField(ByteSpan block);

// REQUIRES: out.size() == kRecordHeaderBytes.
void EncodeRecordHeader(const RecordHeader& header, const Generation& generation, uint64_t offset, MutableByteSpan out);
// Nullopt when the bytes are no record of this generation at this offset.
std::optional<RecordHeader> DecodeRecordHeader(ByteSpan bytes, const Generation& generation, uint64_t offset);
// The first four bytes of each record.
inline constexpr uint32_t kRecordMagic = 0x31635243;  // "CRc1"

// Bytes that a record takes in a segment.
constexpr uint64_t RecordBytes(uint64_t stored_bytes) {
  return AlignUp(kRecordHeaderBytes + stored_bytes, kRecordAlignment);
}
static_assert(kRecordHeaderBytes % kRecordAlignment == 0 && kSegmentHeaderBytes % kRecordAlignment == 0);

// File names: in use, freed and kept for reuse, being made.
enum class SegmentName { kSegment, kFree, kNew };
std::string MakeSegmentName(SegmentName kind, SegmentId id);
struct ParsedSegmentName {
  SegmentName kind;
  SegmentId id;
};
std::optional<ParsedSegmentName> ParseSegmentName(const std::string& name);

}  // namespace cairnfs::store
