// The hash by which placement is random. Every node computes the same: changing it moves all chunks.
#pragma once

#include <bit>
#include <cstring>

#include "cluster/types.h"

namespace cairnfs::cluster {

// A bijection of 64 bits in which every bit of the input moves every bit of the output: "moremur", by Pelle Evensen
// (2019), a finalizer as of MurmurHash3 that stands inputs with few differing bits better.
inline uint64_t Mix(uint64_t x) {
  x ^= x >> 27;
  x *= 0x3C79AC492BA7B653;
  x ^= x >> 33;
  x *= 0x1C69B3F74AC4AE35;
  x ^= x >> 27;
  return x;
}

// The eight bytes at `bytes` as a little-endian number.
inline uint64_t LoadU64(const std::byte* bytes) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Ids are random UUIDs, but tests and people make others: all 16 bytes count.
inline uint64_t SeedOf(const NodeId& id) {
  return Mix(Mix(LoadU64(id.bytes.data()) + 0x9E3779B97F4A7C15) ^ LoadU64(id.bytes.data() + 8));
}

}  // namespace cairnfs::cluster
