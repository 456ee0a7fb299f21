#include "store/chunk_index_format.h"

#include "base/coding.h"

namespace cairnfs::store {
namespace {

constexpr uint8_t kCountersVersion = 1;
constexpr const char* kRebuildAdvice = "; `cairnfs check --rebuild-index --data DATA` makes the chunk index anew";

}  // namespace

std::string ChunkKey(const Digest& digest) {
  std::string key(kIndexBegin);
  key += digest.AsKey();
  return key;
}

std::string SegmentKey(SegmentId id) { return Encoder().Text(kIndexBegin).BigEndianU64(id.value).Take(); }

std::optional<Digest> ParseChunkKey(std::string_view key) {
  if (key.size() != kIndexBegin.size() + Digest::kBytes || !key.starts_with(kIndexBegin)) return std::nullopt;
  Digest digest;
  std::memcpy(digest.bytes.data(), key.data() + kIndexBegin.size(), Digest::kBytes);
  return digest;
}

std::optional<SegmentId> ParseSegmentKey(std::string_view key) {
  if (key.size() != kIndexBegin.size() + sizeof(uint64_t) || !key.starts_with(kIndexBegin)) return std::nullopt;
  return SegmentId{Decoder(key.substr(kIndexBegin.size())).BigEndianU64()};
}

std::string EncodeLocation(const Location& location) {
  return Encoder()
      .U8(location.codec)
      .Varint(location.segment.value)
      .Varint(location.offset)
      .Varint(location.stored_bytes)
      .Varint(location.raw_bytes)
      .Take();
}

Result<Location> DecodeLocation(std::string_view value) {
  Decoder decoder(value);
  Location location;
  location.codec = decoder.U8();
  location.segment.value = decoder.Varint();
  location.offset = decoder.Varint();
  uint64_t stored_bytes = decoder.Varint();
  uint64_t raw_bytes = decoder.Varint();
  if (!decoder.Finished()) return MakeError(ErrorCode::kCorrupt, "a chunk index entry does not decode");
  if (location.codec != kCodecRaw) {
    return MakeError(ErrorCode::kCorrupt,
                     "a chunk index entry has the unknown codec " + std::to_string(location.codec));
  }
  if (stored_bytes > kChunkBytesMax || raw_bytes != stored_bytes || location.offset < kSegmentHeaderBytes ||
      location.offset % kRecordAlignment != 0 || location.offset > kFileSizeMax) {
    return MakeError(ErrorCode::kCorrupt, "a chunk index entry has an impossible offset or length");
  }
  location.stored_bytes = static_cast<uint32_t>(stored_bytes);
  location.raw_bytes = static_cast<uint32_t>(raw_bytes);
  return location;
}

std::string EncodeCounters(const IndexCounters& counters) {
  return Encoder()
      .U8(kCountersVersion)
      .Varint(counters.chunk_count)
      .Varint(counters.unique_bytes)
      .Varint(counters.next_segment_id)
      .Varint(counters.open_segment.value)
      .Varint(counters.open_synced_end)
      .Take();
}

Result<IndexCounters> DecodeCounters(std::string_view value) {
  if (value == kRebuildingValue) {
    return MakeError(ErrorCode::kCorrupt,
                     std::string("an earlier rebuilding of the chunk index was not finished") + kRebuildAdvice);
  }
  Decoder decoder(value);
  uint8_t version = decoder.U8();
  if (decoder.ok() && version != kCountersVersion) {
    return MakeError(ErrorCode::kNotSupported, "chunk index version " + std::to_string(version) +
                                                   "; this program reads version " + std::to_string(kCountersVersion));
  }
  IndexCounters counters;
  counters.chunk_count = decoder.Varint();
  counters.unique_bytes = decoder.Varint();
  counters.next_segment_id = decoder.Varint();
  counters.open_segment.value = decoder.Varint();
  counters.open_synced_end = decoder.Varint();
  if (!decoder.Finished()) {
    return MakeError(ErrorCode::kCorrupt, std::string("the chunk index's counters do not decode") + kRebuildAdvice);
  }
  return counters;
}

std::string EncodeGeneration(const Generation& generation) { return Encoder().Bytes(generation).Take(); }

Result<Generation> DecodeGeneration(std::string_view value) {
  Generation generation;
  if (value.size() != generation.size()) {
    return MakeError(ErrorCode::kCorrupt,
                     std::string("a segment's entry in the chunk index does not decode") + kRebuildAdvice);
  }
  std::memcpy(generation.data(), value.data(), value.size());
  return generation;
}

}  // namespace cairnfs::store
