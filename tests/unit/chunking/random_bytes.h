// Bytes for the chunking tests, and the window test written out a second time, as the format page states it.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "base/types.h"

namespace cairnfs::chunking {

inline std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Few distinct values, so that the byte tests pass often and the mix is put to work.
inline std::vector<std::byte> NarrowBytes(size_t size, uint64_t seed) {
  constexpr uint8_t kValues[] = {0x5e, 0x52, 0x5e, 0x52, 0x0c, 0x00, 0xbc};
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(kValues[random() % std::size(kValues)]);
  return bytes;
}

inline bool IsCandidate(ByteSpan bytes, size_t p, uint32_t mask_bits) {
  auto at = [&](size_t i) { return std::to_integer<unsigned>(bytes[p + i]); };
  if ((at(0) ^ at(3)) != 0x0c || (at(5) + at(10)) % 256 != 0xbc) return false;
  uint64_t low = 0, high = 0;
  for (size_t i = 0; i < 8; i++) {
    low |= uint64_t{at(i)} << (8 * i);
    high |= uint64_t{at(8 + i)} << (8 * i);
  }
  uint64_t mix = low * 0x9e3779b97f4a7c15u + high * 0xc2b2ae3d27d4eb4fu;
  for (uint32_t bit = 0; bit < mask_bits; bit++) {
    if ((mix >> (63 - bit) & 1) != 0) return false;
  }
  return true;
}

// Sixteen bytes that pass the test with `mask_bits`.
inline std::vector<std::byte> PassingWindow(uint32_t mask_bits) {
  std::vector<std::byte> window(16);
  for (uint64_t seed = 1;; seed++) {
    window = RandomBytes(16, seed);
    window[3] = window[0] ^ std::byte{0x0c};
    window[10] = static_cast<std::byte>(0xbc - std::to_integer<int>(window[5]));
    if (IsCandidate(window, 0, mask_bits)) return window;
  }
}

}  // namespace cairnfs::chunking
