#include "base/coding.h"
#include "chunking/chunker.h"
#include "chunking/digest.h"

namespace cairnfs::chunking {
namespace {

constexpr uint32_t kVersion = 1;
constexpr uint32_t kSizeBytesLeast = 64;
constexpr uint32_t kSizeBytesMost = 16 * kMiB;
constexpr uint32_t kMaskBitsMost = 16;
constexpr size_t kFieldBytes = 16;
constexpr size_t kChecksumBytes = 4;

std::string Checksum(std::string_view fields) {
  return std::string(ComputeDigest(AsBytes(fields)).AsKey().substr(0, kChecksumBytes));
}

Error Wrong(ErrorCode code, const char* member, uint64_t value, const std::string& right) {
  return MakeError(code, std::string("chunk parameter ") + member + " is " + std::to_string(value) + "; " + right);
}

}  // namespace

Status ChunkParams::Validate() const {
  constexpr auto kCode = ErrorCode::kInvalidArgument;
  if (version != kVersion) return Wrong(kCode, "version", version, "this program knows version 1 only");
  if (size_bytes_min < kSizeBytesLeast) {
    return Wrong(kCode, "size_bytes_min", size_bytes_min, "it must be at least " + std::to_string(kSizeBytesLeast));
  }
  if (size_bytes_max < size_bytes_min) {
    return Wrong(kCode, "size_bytes_max", size_bytes_max,
                 "it must be at least size_bytes_min, " + std::to_string(size_bytes_min));
  }
  if (size_bytes_max > kSizeBytesMost) {
    return Wrong(kCode, "size_bytes_max", size_bytes_max, "it must be at most " + std::to_string(kSizeBytesMost));
  }
  if (mask_bits > kMaskBitsMost) {
    return Wrong(kCode, "mask_bits", mask_bits, "it must be at most " + std::to_string(kMaskBitsMost));
  }
  return {};
}

std::string ChunkParams::Encode() const {
  std::string fields = Encoder().U32(version).U32(size_bytes_min).U32(size_bytes_max).U32(mask_bits).Take();
  return fields + Checksum(fields);
}

Result<ChunkParams> ChunkParams::Decode(std::string_view text) {
  if (text.size() != kFieldBytes + kChecksumBytes) {
    return Wrong(ErrorCode::kCorrupt, "record length", text.size(),
                 "it must be " + std::to_string(kFieldBytes + kChecksumBytes));
  }
  if (Checksum(text.substr(0, kFieldBytes)) != text.substr(kFieldBytes)) {
    return MakeError(ErrorCode::kCorrupt, "the checksum of the chunk parameters does not match");
  }
  Decoder decoder(text);
  ChunkParams params;
  params.version = decoder.U32();
  params.size_bytes_min = decoder.U32();
  params.size_bytes_max = decoder.U32();
  params.mask_bits = decoder.U32();
  CAIRNFS_RETURN_IF_ERROR(params.Validate());
  return params;
}

}  // namespace cairnfs::chunking
