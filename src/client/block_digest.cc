#include "client/block_digest.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "client/blake3.h"

#if defined(CAIRNFS_CLIENT_HAS_CHUNKING)
#include "chunking/digest.h"
#endif

namespace cairnfs::client {
namespace {

using blake3::kChunkBytes;
using blake3::kInputBytes;
using blake3::kInputsPerChunk;
using blake3::kInputWords;
using blake3::kValueWords;

constexpr uint32_t kLanes = 16;
using Lanes = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
constexpr Lanes kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Compiled for each of these, and chosen when the program is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define CAIRNFS_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CAIRNFS_FOR_EACH_CPU
#endif

// Word w of lane l is at `from` + l * `stride` + 4 * w.
[[gnu::always_inline]] inline void LoadLanes(const std::byte* from, size_t stride, Lanes (&words)[kInputWords]) {
  alignas(64) uint32_t rows[kLanes][kInputWords];
  for (uint32_t lane = 0; lane < kLanes; lane++) std::memcpy(rows[lane], from + lane * stride, kInputBytes);
  for (uint32_t word = 0; word < kInputWords; word++) {
    for (uint32_t lane = 0; lane < kLanes; lane++) words[word][lane] = rows[lane][word];
  }
}

[[gnu::always_inline]] inline void StoreLanes(const Lanes (&value)[kValueWords], uint32_t* out) {
  for (uint32_t lane = 0; lane < kLanes; lane++) {
    for (uint32_t word = 0; word < kValueWords; word++) out[lane * kValueWords + word] = value[word][lane];
  }
}

// The chaining values of kLanes whole chunks of one message. So none of them is the root.
CAIRNFS_FOR_EACH_CPU void HashChunks(const std::byte* data, uint32_t first_chunk, uint32_t* out) {
  Lanes value[kValueWords];
  blake3::SetInitial(value, Lanes{});
  const Lanes counter = kLaneNumbers + first_chunk;
  for (uint32_t input = 0; input < kInputsPerChunk; input++) {
    Lanes words[kInputWords];
    LoadLanes(data + input * kInputBytes, kChunkBytes, words);
    const uint32_t flags = (input == 0 ? uint32_t{blake3::kChunkStart} : 0U) |
                           (input == kInputsPerChunk - 1 ? uint32_t{blake3::kChunkEnd} : 0U);
    blake3::Compress(value, words, counter, kInputBytes, flags);
  }
  StoreLanes(value, out);
}

// The parents of kLanes pairs, none of which is the root.
CAIRNFS_FOR_EACH_CPU void HashParents(const uint32_t* children, uint32_t* out) {
  Lanes value[kValueWords];
  blake3::SetInitial(value, Lanes{});
  Lanes words[kInputWords];
  LoadLanes(reinterpret_cast<const std::byte*>(children), kInputBytes, words);
  blake3::Compress(value, words, Lanes{}, kInputBytes, blake3::kParent);
  StoreLanes(value, out);
}

void HashChunk(const std::byte* data, uint32_t bytes, uint32_t chunk, uint32_t root, uint32_t* out) {
  uint32_t value[kValueWords];
  blake3::SetInitial(value, 0U);
  for (uint32_t at = 0; at == 0 || at < bytes; at += kInputBytes) {
    const uint32_t rest = bytes - at;
    uint32_t words[kInputWords] = {};
    if (rest > 0) std::memcpy(words, data + at, std::min(rest, kInputBytes));
    const uint32_t flags =
        (at == 0 ? uint32_t{blake3::kChunkStart} : 0U) | (rest <= kInputBytes ? blake3::kChunkEnd | root : 0U);
    blake3::Compress(value, words, chunk, std::min(rest, kInputBytes), flags);
  }
  std::copy_n(value, kValueWords, out);
}

}  // namespace

Digest PortableDigest(ByteSpan bytes) {
  const auto chunks = std::max<uint32_t>(1, static_cast<uint32_t>((bytes.size() + kChunkBytes - 1) / kChunkBytes));
  std::vector<uint32_t> values(size_t{chunks} * kValueWords);
  uint32_t chunk = 0;
  for (; (size_t{chunk} + kLanes) * kChunkBytes <= bytes.size(); chunk += kLanes) {
    HashChunks(bytes.data() + size_t{chunk} * kChunkBytes, chunk, values.data() + size_t{chunk} * kValueWords);
  }
  for (; chunk < chunks; chunk++) {
    const size_t at = size_t{chunk} * kChunkBytes;
    const auto rest = static_cast<uint32_t>(std::min<size_t>(kChunkBytes, bytes.size() - at));
    HashChunk(bytes.data() + at, rest, chunk, chunks == 1 ? uint32_t{blake3::kRoot} : 0U,
              values.data() + size_t{chunk} * kValueWords);
  }
  for (uint32_t count = chunks; count > 1; count = (count + 1) / 2) {
    uint32_t pair = 0;
    for (; pair + kLanes <= count / 2; pair += kLanes) {
      uint32_t parents[kLanes * kValueWords];
      HashParents(values.data() + size_t{pair} * 2 * kValueWords, parents);
      std::copy_n(parents, std::size(parents), values.data() + size_t{pair} * kValueWords);
    }
    for (; pair < count / 2; pair++) {
      const uint32_t* left = values.data() + size_t{pair} * 2 * kValueWords;
      blake3::Parent(left, left + kValueWords, count == 2 ? uint32_t{blake3::kRoot} : 0U,
                     values.data() + size_t{pair} * kValueWords);
    }
    if (count % 2 == 1) std::copy_n(&values[size_t{count - 1} * kValueWords], kValueWords, &values[pair * size_t{8}]);
  }
  Digest digest;
  std::memcpy(digest.bytes.data(), values.data(), Digest::kBytes);
  return digest;
}

#if defined(CAIRNFS_CLIENT_HAS_CHUNKING)
Digest DigestOfBlock(ByteSpan block) { return chunking::ComputeDigest(block); }
#else
Digest DigestOfBlock(ByteSpan block) { return PortableDigest(block); }
#endif

}  // namespace cairnfs::client
