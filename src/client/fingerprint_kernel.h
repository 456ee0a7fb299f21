// The kernels that fingerprint blocks: a tile of a block becomes a chaining value, the tiles of a block its digest, and
// that is compared with the digest of the save before. Written as phases; all threads of a group have ended a phase
// before one begins the next. `Threads` says how a phase runs: on a device all threads at once with a barrier behind
// them, on the host one thread after another (tests).
//
// A tile is 128 chunks, one for each thread of a group. Chunks lie 1 KiB apart, so a warp that read its chunks directly
// would touch a cache line per thread. Instead the group reads 128 bytes of each chunk together, whole lines, into
// shared memory, and each thread then takes its own. There, the 16-byte units of a row change places by the row's
// number, so that neither way two threads meet in one bank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/blake3.h"

namespace cairnfs::client {

inline constexpr uint32_t kBlockBytes = 1 << 20;  // CAIRNFS_BLOCK_BYTES
constexpr uint64_t BlocksOf(uint64_t bytes) { return bytes / kBlockBytes + (bytes % kBlockBytes == 0 ? 0 : 1); }
inline constexpr uint32_t kTileChunks = 128;
inline constexpr uint32_t kTileBytes = kTileChunks * blake3::kChunkBytes;
inline constexpr uint32_t kTilesPerBlock = kBlockBytes / kTileBytes;
inline constexpr uint32_t kRowBytes = 128;  // what is read of each chunk at once
inline constexpr uint32_t kRowWords = kRowBytes / 4;
inline constexpr uint32_t kUnitsPerRow = kRowBytes / 16;

// A tensor whose blocks are fingerprinted. 1 <= bytes.
struct FingerprintTensor {
  const unsigned char* data;
  uint64_t bytes;
  uint32_t first_block;       // of the job; tensors come in the order of their blocks, without gaps
  uint32_t old_first_digest;  // block i was the old digest old_first_digest + i, for i < old_digest_count
  uint32_t old_digest_count;  // 0: nothing to compare with
  uint32_t reserved;
};

// All pointers are to memory of the device. Digests are kValueWords words each, little-endian.
struct FingerprintJob {
  const FingerprintTensor* tensors;
  uint32_t tensor_count;
  uint32_t block_count;
  uint32_t slab_blocks;         // so many blocks are done at a time, 1 at least
  uint32_t* tile_values;        // room for kTilesPerBlock chaining values per block of a slab
  const uint32_t* old_digests;  // may be null where no tensor has any
  uint32_t* digests;            // one per block
  uint32_t* changed_bits;       // bit b % 32 of word b / 32; zeros before; null: nothing is compared
};

// Larger slabs are no quicker; their chaining values take 1 MiB.
inline constexpr uint32_t kSlabBlocksMax = 4096;

// Calls `run(first_block, block_count)` for each slab. What it starts must run in this order.
template <typename Run>
void ForEachSlab(const FingerprintJob& job, Run run) {
  for (uint64_t first = 0; first < job.block_count; first += job.slab_blocks) {
    const uint64_t rest = job.block_count - first;
    run(static_cast<uint32_t>(first), static_cast<uint32_t>(rest < job.slab_blocks ? rest : job.slab_blocks));
  }
}

struct TileShared {
  alignas(16) uint32_t words[kTileChunks * kRowWords];
};
struct TileThread {  // what a thread keeps from phase to phase
  uint32_t value[blake3::kValueWords];
};

// The tensor that has this block of the job.
CAIRNFS_KERNEL_FUNCTION const FingerprintTensor& TensorOfBlock(const FingerprintJob& job, uint32_t block) {
  uint32_t low = 0;
  uint32_t high = job.tensor_count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (job.tensors[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return job.tensors[low];
}

CAIRNFS_KERNEL_FUNCTION uint32_t BytesOfBlock(const FingerprintTensor& tensor, uint32_t block) {
  const uint64_t rest = tensor.bytes - uint64_t{block - tensor.first_block} * kBlockBytes;
  return rest < kBlockBytes ? static_cast<uint32_t>(rest) : kBlockBytes;
}

// 16 bytes at data + at, zeros from data + end on.
struct Unit {
  alignas(16) uint32_t words[4];
};
CAIRNFS_KERNEL_FUNCTION Unit LoadUnit(const unsigned char* data, uint32_t at, uint32_t end) {
  Unit unit = {};
  if (at + 16 <= end && reinterpret_cast<uintptr_t>(data) % 16 == 0) {
#if defined(__CUDACC__)
    const uint4 words = __ldg(reinterpret_cast<const uint4*>(data + at));
    unit = Unit{{words.x, words.y, words.z, words.w}};
#else
    __builtin_memcpy(&unit, data + at, sizeof unit);
#endif
    return unit;
  }
  for (uint32_t i = 0; i < 16; i++) {
    if (at + i < end) unit.words[i / 4] |= uint32_t{data[at + i]} << (i % 4 * 8);
  }
  return unit;
}

CAIRNFS_KERNEL_FUNCTION uint32_t PlaceOfUnit(uint32_t row, uint32_t unit) {
  return row * kUnitsPerRow + (unit ^ (row % kUnitsPerRow));
}

// Phase: this thread's share of bytes [step, step + 1) x kRowBytes of each chunk.
CAIRNFS_KERNEL_FUNCTION void LoadRows(uint32_t thread, uint32_t step, const unsigned char* tile, uint32_t tile_bytes,
                                      TileShared& shared) {
  for (uint32_t i = 0; i < kUnitsPerRow; i++) {
    const uint32_t number = i * kTileChunks + thread;
    const uint32_t row = number / kUnitsPerRow;
    const uint32_t unit = number % kUnitsPerRow;
    const uint32_t at = row * blake3::kChunkBytes + step * kRowBytes + unit * 16;
    if (at / blake3::kInputBytes * blake3::kInputBytes >= tile_bytes) continue;  // an input is filled up with zeros
    *reinterpret_cast<Unit*>(shared.words + PlaceOfUnit(row, unit) * 4) = LoadUnit(tile, at, tile_bytes);
  }
}

struct ChunkPlace {
  uint32_t bytes;    // of the chunk, 1 at least
  uint32_t counter;  // its number in the block
  uint32_t root;     // kRoot where the chunk is the whole block
};

// Phase: the two inputs of its own row.
CAIRNFS_KERNEL_FUNCTION void CompressRow(uint32_t thread, uint32_t step, const ChunkPlace& chunk,
                                         const TileShared& shared, TileThread& state) {
  for (uint32_t half = 0; half < 2; half++) {
    const uint32_t at = step * kRowBytes + half * blake3::kInputBytes;
    if (at >= chunk.bytes) return;
    const uint32_t rest = chunk.bytes - at;
    uint32_t flags = at == 0 ? uint32_t{blake3::kChunkStart} : 0U;
    if (rest <= blake3::kInputBytes) flags |= blake3::kChunkEnd | chunk.root;
    uint32_t m[blake3::kInputWords];
    for (uint32_t i = 0; i < 4; i++) {
      const Unit unit = *reinterpret_cast<const Unit*>(shared.words + PlaceOfUnit(thread, half * 4 + i) * 4);
      for (uint32_t j = 0; j < 4; j++) m[i * 4 + j] = unit.words[j];
    }
    blake3::Compress(state.value, m, chunk.counter, rest < blake3::kInputBytes ? rest : blake3::kInputBytes, flags);
  }
}

// Tile `tile` of the slab that begins with block `first_block`, counted as if each block had kTilesPerBlock; those past
// a block's end do nothing.
template <typename Threads>
CAIRNFS_KERNEL_FUNCTION void HashTile(const FingerprintJob& job, uint32_t first_block, uint32_t tile,
                                      TileShared& shared, Threads& threads) {
  const uint32_t block = first_block + tile / kTilesPerBlock;
  const uint32_t first = tile % kTilesPerBlock * kTileBytes;
  const FingerprintTensor& tensor = TensorOfBlock(job, block);
  const uint32_t block_bytes = BytesOfBlock(tensor, block);
  if (first >= block_bytes) return;
  const unsigned char* data = tensor.data + uint64_t{block - tensor.first_block} * kBlockBytes + first;
  const uint32_t bytes = block_bytes - first < kTileBytes ? block_bytes - first : kTileBytes;
  const uint32_t chunks = (bytes + blake3::kChunkBytes - 1) / blake3::kChunkBytes;

  threads.Phase([&](uint32_t, TileThread& state) { blake3::SetInitial(state.value, 0U); });
  for (uint32_t step = 0; step < blake3::kChunkBytes / kRowBytes; step++) {
    threads.Phase([&](uint32_t thread, TileThread&) { LoadRows(thread, step, data, bytes, shared); });
    threads.Phase([&](uint32_t thread, TileThread& state) {
      if (thread >= chunks) return;
      const uint32_t begin = thread * blake3::kChunkBytes;
      const uint32_t rest = bytes - begin;
      const ChunkPlace chunk{rest < blake3::kChunkBytes ? rest : blake3::kChunkBytes,
                             first / blake3::kChunkBytes + thread,
                             block_bytes <= blake3::kChunkBytes ? uint32_t{blake3::kRoot} : 0U};
      CompressRow(thread, step, chunk, shared, state);
    });
  }
  // The values of the tree's current level lie one after the other in shared memory.
  uint32_t* const values = shared.words;
  const auto store = [&](uint32_t at, const TileThread& state) {
    for (uint32_t i = 0; i < blake3::kValueWords; i++) values[at * blake3::kValueWords + i] = state.value[i];
  };
  threads.Phase([&](uint32_t thread, TileThread& state) {
    if (thread < chunks) store(thread, state);
  });
  for (uint32_t count = chunks; count > 1; count = (count + 1) / 2) {
    const uint32_t root = count == 2 && block_bytes <= kTileBytes ? uint32_t{blake3::kRoot} : 0U;
    threads.Phase([&](uint32_t thread, TileThread& state) {
      const uint32_t* left = values + size_t{thread} * 2 * blake3::kValueWords;
      if (thread < count / 2) {
        blake3::Parent(left, left + blake3::kValueWords, root, state.value);
      } else if (thread * 2 < count) {
        for (uint32_t i = 0; i < blake3::kValueWords; i++) state.value[i] = left[i];
      }
    });
    threads.Phase([&](uint32_t thread, TileThread& state) {
      if (thread * 2 < count) store(thread, state);
    });
  }
  threads.Phase([&](uint32_t thread, TileThread&) {
    if (thread < blake3::kValueWords) job.tile_values[size_t{tile} * blake3::kValueWords + thread] = values[thread];
  });
}

// The digest of the slab's block number `at`, from its tiles, and whether it is the old one. `set_bit(word, mask)` sets
// bits at once.
template <typename SetBit>
CAIRNFS_KERNEL_FUNCTION void FinishBlock(const FingerprintJob& job, uint32_t first_block, uint32_t at, SetBit set_bit) {
  const uint32_t block = first_block + at;
  const FingerprintTensor& tensor = TensorOfBlock(job, block);
  uint32_t count = (BytesOfBlock(tensor, block) + kTileBytes - 1) / kTileBytes;
  uint32_t* values = job.tile_values + uint64_t{at} * kTilesPerBlock * blake3::kValueWords;
  for (; count > 1; count = (count + 1) / 2) {
    for (uint32_t i = 0; i < count / 2; i++) {
      const uint32_t* left = values + size_t{i} * 2 * blake3::kValueWords;
      blake3::Parent(left, left + blake3::kValueWords, count == 2 ? uint32_t{blake3::kRoot} : 0U,
                     values + size_t{i} * blake3::kValueWords);
    }
    if (count % 2 == 1) {
      for (uint32_t i = 0; i < blake3::kValueWords; i++) {
        values[count / 2 * blake3::kValueWords + i] = values[(count - 1) * blake3::kValueWords + i];
      }
    }
  }
  const uint32_t index = block - tensor.first_block;
  bool changed = index >= tensor.old_digest_count;
  for (uint32_t i = 0; i < blake3::kValueWords; i++) {
    job.digests[uint64_t{block} * blake3::kValueWords + i] = values[i];
    changed =
        changed || job.old_digests[(uint64_t{tensor.old_first_digest} + index) * blake3::kValueWords + i] != values[i];
  }
  if (changed && job.changed_bits != nullptr) set_bit(job.changed_bits + block / 32, uint32_t{1} << (block % 32));
}

}  // namespace cairnfs::client
