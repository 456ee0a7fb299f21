#include "store/segment_format.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cstdio>
#include <random>

#include "base/coding.h"
#include "chunking/digest.h"

namespace cairnfs::store {
namespace {

constexpr std::string_view kSegmentMagic = "CAIRNSEG";
constexpr size_t kHeaderFieldsBytes = 48;  // magic, version, reserved, id, generation, size
constexpr size_t kHeaderGenerationAt = 24;
constexpr size_t kHeaderChecksumBytes = 16;
constexpr size_t kRecordChecksumAt = 16;  // after magic, codec, reserved, raw and stored length
constexpr size_t kRecordChecksumBytes = 8;
constexpr size_t kRecordDigestAt = kRecordChecksumAt + kRecordChecksumBytes;
static_assert(kRecordDigestAt + Digest::kBytes == kRecordHeaderBytes);

constexpr std::string_view kNamePrefixes[] = {"segment-", "free-", "new-"};

// Of the whole block, with zeros where the checksum stands.
Digest HeaderChecksum(ByteSpan block) {
  static constexpr std::array<std::byte, kHeaderChecksumBytes> kZeros{};
  chunking::Digester digester;
  digester.Update(block.first(kHeaderFieldsBytes));
  digester.Update(kZeros);
  digester.Update(block.subspan(kHeaderFieldsBytes + kHeaderChecksumBytes));
  return digester.Finish();
}

Digest RecordChecksum(ByteSpan header, const Generation& generation, uint64_t offset) {
  std::array<std::byte, kRecordHeaderBytes - kRecordChecksumBytes + sizeof(Generation) + sizeof(uint64_t)> covered;
  std::byte* out = covered.data();
  out = std::copy_n(header.data(), kRecordChecksumAt, out);
  out = std::copy_n(header.data() + kRecordDigestAt, Digest::kBytes, out);
  out = std::copy(generation.begin(), generation.end(), out);
  for (unsigned i = 0; i < sizeof offset; ++i) *out++ = static_cast<std::byte>(offset >> (8 * i));
  return chunking::ComputeDigest(covered);
}

}  // namespace

Generation RandomGeneration() {
  Generation generation;
  std::random_device device;
  for (std::byte& byte : generation) byte = static_cast<std::byte>(device());
  return generation;
}

void EncodeSegmentHeader(const SegmentHeader& header, MutableByteSpan block) {
  assert(block.size() == kSegmentHeaderBytes);
  std::fill(block.begin(), block.end(), std::byte{0});
  std::string fields = Encoder()
                           .Bytes(AsBytes(kSegmentMagic))
                           .U32(kSegmentVersion)
                           .U32(0)
                           .U64(header.id.value)
                           .Bytes(header.generation)
                           .U64(header.size_bytes)
                           .Take();
  assert(fields.size() == kHeaderFieldsBytes);
  std::memcpy(block.data(), fields.data(), fields.size());
  Digest checksum = HeaderChecksum(block);
  std::memcpy(block.data() + kHeaderFieldsBytes, checksum.bytes.data(), kHeaderChecksumBytes);
}

Generation GenerationField(ByteSpan block) {
  assert(block.size() >= kSegmentHeaderBytes);
  Generation generation;
  std::copy_n(block.begin() + kHeaderGenerationAt, generation.size(), generation.begin());
  return generation;
}

Result<SegmentHeader> DecodeSegmentHeader(ByteSpan block) {
  if (block.size() < kSegmentHeaderBytes) {
    return MakeError(ErrorCode::kCorrupt, "the segment header is cut off after " + std::to_string(block.size()) +
                                              " of " + std::to_string(kSegmentHeaderBytes) + " bytes");
  }
  block = block.first(kSegmentHeaderBytes);
  Decoder decoder(AsText(block.first(kHeaderFieldsBytes)));
  if (decoder.Text(kSegmentMagic.size()) != kSegmentMagic) {
    return MakeError(ErrorCode::kCorrupt, "the file does not begin with a segment header");
  }
  Digest checksum = HeaderChecksum(block);
  if (std::memcmp(block.data() + kHeaderFieldsBytes, checksum.bytes.data(), kHeaderChecksumBytes) != 0) {
    return MakeError(ErrorCode::kCorrupt, "the checksum of the segment header does not match");
  }
  uint32_t version = decoder.U32();
  if (version != kSegmentVersion) {
    return MakeError(ErrorCode::kNotSupported, "segment format version " + std::to_string(version) +
                                                   "; this program reads version " + std::to_string(kSegmentVersion));
  }
  decoder.U32();
  SegmentHeader header;
  header.id.value = decoder.U64();
  header.generation = GenerationField(block);
  decoder.Text(header.generation.size());
  header.size_bytes = decoder.U64();
  return header;
}

void EncodeRecordHeader(const RecordHeader& header, const Generation& generation, uint64_t offset,
                        MutableByteSpan out) {
  assert(out.size() == kRecordHeaderBytes);
  std::string fields = Encoder()
                           .U32(kRecordMagic)
                           .U8(header.codec)
                           .U8(0)
                           .U16(0)
                           .U32(header.raw_bytes)
                           .U32(header.stored_bytes)
                           .U64(0)
                           .Id(header.digest)
                           .Take();
  assert(fields.size() == kRecordHeaderBytes);
  std::memcpy(out.data(), fields.data(), fields.size());
  Digest checksum = RecordChecksum(out, generation, offset);
  std::memcpy(out.data() + kRecordChecksumAt, checksum.bytes.data(), kRecordChecksumBytes);
}

std::optional<RecordHeader> DecodeRecordHeader(ByteSpan bytes, const Generation& generation, uint64_t offset) {
  if (bytes.size() < kRecordHeaderBytes) return std::nullopt;
  bytes = bytes.first(kRecordHeaderBytes);
  Decoder decoder(AsText(bytes));
  if (decoder.U32() != kRecordMagic) return std::nullopt;
  Digest checksum = RecordChecksum(bytes, generation, offset);
  if (std::memcmp(bytes.data() + kRecordChecksumAt, checksum.bytes.data(), kRecordChecksumBytes) != 0) {
    return std::nullopt;
  }
  RecordHeader header;
  header.codec = decoder.U8();
  decoder.U8();
  decoder.U16();
  header.raw_bytes = decoder.U32();
  header.stored_bytes = decoder.U32();
  decoder.U64();
  header.digest = decoder.Id();
  if (header.stored_bytes > kChunkBytesMax) return std::nullopt;
  return header;
}

std::string MakeSegmentName(SegmentName kind, SegmentId id) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(id.value));
  return std::string(kNamePrefixes[static_cast<int>(kind)]) + hex;
}

std::optional<ParsedSegmentName> ParseSegmentName(const std::string& name) {
  for (int kind = 0; kind < 3; ++kind) {
    std::string_view prefix = kNamePrefixes[kind];
    if (name.size() != prefix.size() + 16 || !name.starts_with(prefix)) continue;
    uint64_t id = 0;
    auto [end, code] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), id, 16);
    if (code != std::errc{} || end != name.data() + name.size()) return std::nullopt;
    return ParsedSegmentName{static_cast<SegmentName>(kind), SegmentId{id}};
  }
  return std::nullopt;
}

}  // namespace cairnfs::store
