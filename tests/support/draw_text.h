// Random bytes for tests that draw many of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

namespace cairnfs {

// `size` bytes, eight for each draw: a draw takes long where nothing is optimised.
inline std::string DrawText(std::mt19937_64& random, size_t size) {
  std::string text(size, '\0');
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t drawn = random();
    std::memcpy(text.data() + at, &drawn, std::min(sizeof drawn, size - at));
  }
  return text;
}

}  // namespace cairnfs
