// Ids, digests, byte ranges and times: the small value types that every room speaks.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace cairnfs {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline constexpr size_t kKiB = 1024;
inline constexpr size_t kMiB = 1024 * kKiB;
inline constexpr size_t kGiB = 1024 * kMiB;
inline constexpr size_t kTiB = 1024 * kGiB;
inline constexpr size_t kPageBytes = 4096;  // alignment of direct I/O and of payloads

// To a multiple of `alignment`, which need not be a power of two.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t AlignDown(uint64_t value, uint64_t alignment) { return value / alignment * alignment; }

// Largest file size and offset + 1: what loff_t holds, less one page so that rounding up cannot overflow.
inline constexpr uint64_t kFileSizeMax = 0x7fff'ffff'ffff'f000;
inline constexpr size_t kNameBytesMax = 255;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Inode number. Never used again once given out; 1 is the root.
struct InodeId {
  uint64_t value = 0;
  auto operator<=>(const InodeId&) const = default;
};
inline constexpr InodeId kRootInode{1};

struct SegmentId {
  uint64_t value = 0;
  auto operator<=>(const SegmentId&) const = default;
};

// A chunk's name: the BLAKE3-256 of its bytes, and their owner (chunking/digest.h).
struct Digest {
  static constexpr size_t kBytes = 32;
  std::array<std::byte, kBytes> bytes{};
  auto operator<=>(const Digest&) const = default;
  std::string ToHex() const;
  std::string_view AsKey() const { return {reinterpret_cast<const char*>(bytes.data()), kBytes}; }
};

// Digests are uniform, so eight of their bytes are a hash.
struct DigestHash {
  size_t operator()(const Digest& digest) const {
    size_t hash;
    std::memcpy(&hash, digest.bytes.data(), sizeof hash);
    return hash;
  }
};

struct Timestamp {
  int64_t seconds = 0;  // since 1970, UTC
  uint32_t nanoseconds = 0;
  auto operator<=>(const Timestamp&) const = default;
};

}  // namespace cairnfs

template <>
struct std::hash<cairnfs::InodeId> {
  size_t operator()(const cairnfs::InodeId& id) const { return std::hash<uint64_t>()(id.value); }
};
template <>
struct std::hash<cairnfs::SegmentId> {
  size_t operator()(const cairnfs::SegmentId& id) const { return std::hash<uint64_t>()(id.value); }
};
