// A store on a disk and an engine in memory, and chunks to put into it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "chunking/digest.h"
#include "io/faulty_disk.h"
#include "io/memory_disk.h"
#include "kv/engine.h"
#include "store/local_chunk_store.h"

namespace cairnfs::store {

inline std::unique_ptr<io::BufferPool> MakePool(size_t size_bytes = 48 * kMiB) {
  auto pool = io::BufferPool::Create({.size_bytes_max = size_bytes, .reserved_count = 4});
  EXPECT_TRUE(pool.ok());
  return std::move(pool).value();
}

inline StoreOptions SmallOptions() {
  StoreOptions options;
  options.segment_bytes = kMiB;
  options.free_segments_bytes_max = 4 * kMiB;
  options.reserve_bytes = kMiB;
  options.verify_threads = 2;
  return options;
}

// A chunk of its own bytes, which the same seed and size make again.
struct TestChunk {
  std::string bytes;
  Digest digest;
  std::vector<io::Slice> slices() const {
    // Two slices, so that seams are met.
    auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    size_t half = bytes.size() / 3;
    return {io::Slice{{}, data, half}, io::Slice{{}, data + half, bytes.size() - half}};
  }
};

inline TestChunk MakeChunk(uint64_t seed, size_t size) {
  TestChunk chunk;
  chunk.bytes.resize(size);
  std::mt19937_64 random(seed * 1'000'003 + size);
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    uint64_t word = random();
    std::memcpy(chunk.bytes.data() + at, &word, 8);
  }
  for (; at < size; ++at) chunk.bytes[at] = static_cast<char>(random());
  // The store knows no owners: chunks of several of them are as good as those of none.
  chunk.digest = chunking::NameBytes({static_cast<uint32_t>(seed % 3)}, AsBytes(chunk.bytes));
  return chunk;
}

inline Result<PutResult> PutChunk(ChunkStore& store, const TestChunk& chunk) {
  auto slices = chunk.slices();
  return store.Put(chunk.digest, slices);
}

#define ASSERT_OK(expression)                                                                                         \
  do {                                                                                                                \
    auto&& assert_ok_result = (expression);                                                                           \
    ASSERT_TRUE(assert_ok_result.ok()) << #expression << ": " << ErrorCodeName(assert_ok_result.error().code) << ": " \
                                       << assert_ok_result.error().message;                                           \
  } while (false)

class StoreTest : public ::testing::Test {
 protected:
  void Open(const StoreOptions& options = SmallOptions()) {
    store_.reset();
    auto store = LocalChunkStore::Open(disk_, *engine_, *pool_, options);
    ASSERT_OK(store);
    store_ = std::move(store).value();
  }
  void Put(const TestChunk& chunk, bool is_new = true) {
    auto result = PutChunk(*store_, chunk);
    ASSERT_OK(result);
    EXPECT_EQ(result->is_new, is_new);
  }
  void ExpectReads(const TestChunk& chunk) {
    auto text = GetText(*store_, chunk.digest);
    ASSERT_OK(text);
    EXPECT_TRUE(*text == chunk.bytes);
  }

  io::MemoryDisk memory_{io::MemoryDisk::Options{.size_bytes = 256 * kMiB}};
  io::FaultyDisk disk_{memory_};
  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<io::BufferPool> pool_ = MakePool();
  std::unique_ptr<LocalChunkStore> store_;
};

}  // namespace cairnfs::store
