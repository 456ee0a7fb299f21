// A small random generator whose sequence depends on its seed alone, on every machine and with every compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace cairnfs::testing {

// SplitMix64: one multiplication-free state step, a good mix; also used to derive seeds from seeds.
inline uint64_t MixBits(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t value = MixBits(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return value;
  }
  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // Uniform in [low, high].
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool OneIn(uint64_t count) { return Below(count) == 0; }
  bool Percent(uint64_t share) { return Below(100) < share; }
  // Small values often, values near `high` seldom: the count of bits is uniform.
  uint64_t Skewed(uint64_t high) {
    unsigned bits = 1;
    while (bits < 63 && (1ULL << bits) <= high) ++bits;
    uint64_t value = Next() & ((1ULL << Between(1, bits)) - 1);
    return value > high ? high : value;
  }
  template <typename T>
  const T& Pick(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

 private:
  uint64_t state_;
};

// `size` bytes that depend on `seed` alone. A part of the seeds gives long runs of one byte, which no cut point
// divides.
inline std::string MakeContent(uint64_t seed, size_t size) {
  std::string content(size, '\0');
  if (seed % 8 == 0) {
    std::memset(content.data(), static_cast<int>(seed >> 8 & 0xff), size);
    return content;
  }
  size_t position = 0;
  for (uint64_t counter = 0; position < size; ++counter) {
    uint64_t word = MixBits(seed ^ (counter * 0xd6e8feb86659fd93ULL));
    size_t count = size - position < 8 ? size - position : 8;
    std::memcpy(content.data() + position, &word, count);
    position += count;
  }
  return content;
}

}  // namespace cairnfs::testing
