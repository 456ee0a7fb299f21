#include "content.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace cairnfs::bench {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kBlockBytes = kMiB;
constexpr size_t kBlocksOfAKind = 16;  // float32 and bfloat16 take turns after so many blocks
constexpr float kScale = 0.05F / 2147483648.0F;

// Marsaglia's xorshift128, sixteen of them side by side, so that the compiler makes vectors of it.
struct Generators {
  uint32_t x[kLanes], y[kLanes], z[kLanes], w[kLanes];

  explicit Generators(uint64_t seed) {
    for (size_t lane = 0; lane < kLanes; lane++) {
      uint64_t low = MixSeeds(seed, 2 * lane);
      uint64_t high = MixSeeds(seed, 2 * lane + 1);
      x[lane] = static_cast<uint32_t>(low);
      y[lane] = static_cast<uint32_t>(low >> 32);
      z[lane] = static_cast<uint32_t>(high);
      w[lane] = static_cast<uint32_t>(high >> 32) | 1;  // not all zero
    }
  }

  // Sixteen floats as their bits.
  void Next(uint32_t* out) {
    for (size_t lane = 0; lane < kLanes; lane++) {
      uint32_t t = x[lane] ^ (x[lane] << 11);
      x[lane] = y[lane];
      y[lane] = z[lane];
      z[lane] = w[lane];
      w[lane] ^= (w[lane] >> 19) ^ t ^ (t >> 8);
      float value = static_cast<float>(static_cast<int32_t>(w[lane])) * kScale;
      std::memcpy(&out[lane], &value, sizeof value);
    }
  }
};

void FillFloats(Generators& generators, uint32_t* out) {
  for (size_t i = 0; i < kBlockBytes / sizeof(uint32_t); i += kLanes) generators.Next(out + i);
}

// Two bfloat16 values in each word: the upper halves of two floats.
void FillHalves(Generators& generators, uint32_t* out) {
  uint32_t upper[kLanes];
  uint32_t lower[kLanes];
  for (size_t i = 0; i < kBlockBytes / sizeof(uint32_t); i += kLanes) {
    generators.Next(upper);
    generators.Next(lower);
    for (size_t lane = 0; lane < kLanes; lane++) {
      out[i + lane] = (upper[lane] & 0xffff'0000U) | (lower[lane] >> 16);
    }
  }
}

void FillBlock(uint64_t seed, size_t index, uint32_t* out) {
  Generators generators(MixSeeds(seed, index));
  if (index / kBlocksOfAKind % 2 == 0) {
    FillFloats(generators, out);
  } else {
    FillHalves(generators, out);
  }
}

}  // namespace

uint64_t MixSeeds(uint64_t a, uint64_t b) {  // the finalizer of splitmix64
  uint64_t mixed = a * 0x9e37'79b9'7f4a'7c15 + b + 0x2545'f491'4f6c'dd1d;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11eb;
  return mixed ^ (mixed >> 31);
}

void FillContent(uint64_t seed, MutableByteSpan bytes) {
  size_t block_count = (bytes.size() + kBlockBytes - 1) / kBlockBytes;
  std::atomic<size_t> next{0};
  auto work = [&] {
    std::vector<uint32_t> block(kBlockBytes / sizeof(uint32_t));
    for (size_t index = next++; index < block_count; index = next++) {
      FillBlock(seed, index, block.data());
      size_t offset = index * kBlockBytes;
      std::memcpy(bytes.data() + offset, block.data(), std::min(kBlockBytes, bytes.size() - offset));
    }
  };
  std::vector<std::jthread> helpers;
  unsigned helper_count = std::min<size_t>(std::thread::hardware_concurrency(), block_count);
  for (unsigned i = 1; i < helper_count; i++) helpers.emplace_back(work);
  work();
}

MutableByteSpan MapTouched(size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("bench_load: memory for the data");
    std::exit(1);
  }
  madvise(memory, size, MADV_HUGEPAGE);
  madvise(memory, size, MADV_DONTFORK);  // the readers that are forked need none of it
  std::memset(memory, 0, size);
  return {static_cast<std::byte*>(memory), size};
}

}  // namespace cairnfs::bench
