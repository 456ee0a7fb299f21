// What the cache keeps and what it gives up, and the copy past the processor's caches.
#include "store/chunk_cache.h"

#include <algorithm>
#include <future>

#include "store/stream_copy.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

constexpr size_t kChunkBytes = kMiB;
constexpr size_t kCacheChunks = 16;

class ChunkCacheTest : public ::testing::Test {
 protected:
  static Digest DigestOf(uint64_t number) { return MakeChunk(number, 16).digest; }
  ChunkData Data() {
    ChunkData data;
    io::BufferRef buffer = pool_->Acquire();
    std::byte* begin = buffer.payload();
    data.slices.push_back(io::Slice{std::move(buffer), begin, kChunkBytes});
    data.size = kChunkBytes;
    return data;
  }
  // False: it was not there.
  bool Read(uint64_t number, Reader reader = Reader::kThisHost) {
    if (cache_.Find(DigestOf(number), reader)) return true;
    cache_.InsertRead(DigestOf(number), Data(), reader, reader);
    return false;
  }
  void ReadAhead(uint64_t number) { cache_.InsertRead(DigestOf(number), Data(), Reader::kThisHost, Reader::kNone); }
  void Fetched(uint64_t number) {
    cache_.InsertFetched(DigestOf(number), Data(), Reader::kNone);
    cache_.Find(DigestOf(number), Reader::kThisHost);
  }
  void Written(uint64_t number) {
    ChunkData data = Data();
    cache_.InsertWritten(DigestOf(number), data.slices, data.size);
  }
  size_t CountOf(uint64_t begin, uint64_t end) {
    size_t count = 0;
    for (uint64_t i = begin; i < end; ++i) count += cache_.Contains(DigestOf(i)) ? 1 : 0;
    return count;
  }

  std::unique_ptr<io::BufferPool> pool_ = MakePool(48 * kMiB);
  ChunkCache cache_{*pool_, kCacheChunks* kChunkBytes};
};

TEST_F(ChunkCacheTest, AScanLeavesWhatWasWritten) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  for (uint64_t i = 100; i < 300; ++i) Read(i);
  EXPECT_GE(CountOf(0, kCacheChunks), kCacheChunks * 5 / 8);
  EXPECT_EQ(CountOf(296, 300), 4U);
}

TEST_F(ChunkCacheTest, WhatIsReadAgainSoonStays) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  // More than the queue of new ones takes, less than is remembered of those that left it.
  for (int turn = 0; turn < 3; ++turn) {
    for (uint64_t i = 100; i < 108; ++i) Read(i);
  }
  for (uint64_t i = 200; i < 300; ++i) Read(i);
  EXPECT_GE(CountOf(100, 108), 4U);
}

TEST_F(ChunkCacheTest, AllOfItIsForReadsWhenNothingElseWantsIt) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Read(i);
  EXPECT_EQ(CountOf(0, kCacheChunks), kCacheChunks);
}

TEST_F(ChunkCacheTest, WhatWentBeforeItsReaderCameWasNotReadYet) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint64_t i = 100; i < 108; ++i) ReadAhead(i);
  }
  EXPECT_GE(CountOf(0, kCacheChunks), kCacheChunks * 5 / 8);
}

// Several hosts read the same, and this node's disk is for all of them. One has fallen behind by more than is kept.
// When it comes closer, what it comes for is there.
TEST_F(ChunkCacheTest, WhoIsFarBehindDoesNotDriveOutWhatItComesFor) {
  constexpr uint64_t kAhead = kCacheChunks + 1, kWithin = kCacheChunks / 2, kEnd = 200;
  for (const Reader first : {Reader::kThisHost, Reader::kOtherNode}) {
    cache_.Clear();
    for (uint64_t i = 0; i < kEnd; ++i) {
      Read(i, first);
      if (i < kAhead) continue;
      EXPECT_FALSE(Read(i - kAhead, Reader::kOtherNode));
    }
    for (uint64_t i = kEnd - kAhead; i < kEnd - kWithin; ++i) Read(i, Reader::kOtherNode);
    for (uint64_t i = kEnd - kWithin; i < kEnd; ++i) EXPECT_TRUE(Read(i, Reader::kOtherNode)) << i;
  }
}

// A restore on several hosts at once: what this node's disk gave is for all of them, what came from others for this
// one.
TEST_F(ChunkCacheTest, WhatCameFromOtherNodesGoesFirst) {
  for (uint64_t i = 0; i < 100; ++i) {
    Read(i);
    Fetched(1000 + i);
    Fetched(2000 + i);
  }
  EXPECT_GE(CountOf(100 - kCacheChunks * 3 / 4, 100), kCacheChunks * 3 / 4 - 1);
  EXPECT_EQ(CountOf(1098, 1100) + CountOf(2098, 2100), 4U);
}

TEST_F(ChunkCacheTest, WhatCameFromOtherNodesGoesFirstWhereMemoryIsShort) {
  for (uint64_t i = 0; i < kCacheChunks / 2; ++i) {
    Written(i);
    Fetched(100 + i);
  }
  cache_.MakeRoom(kCacheChunks * 3 / 4 - 1);  // a buffer is larger than what it holds
  EXPECT_EQ(CountOf(0, kCacheChunks / 2), 3U);
  EXPECT_EQ(CountOf(100, 100 + kCacheChunks / 2), 1U);
}

TEST_F(ChunkCacheTest, AllOfItIsForWhatCameFromOtherNodesWhenNothingElseWantsIt) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Fetched(i);
  EXPECT_EQ(CountOf(0, kCacheChunks), kCacheChunks);
}

TEST_F(ChunkCacheTest, WhatCameFromOtherNodesLeavesWhatWasWritten) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  for (uint64_t i = 100; i < 300; ++i) Fetched(i);
  EXPECT_GE(CountOf(0, kCacheChunks), kCacheChunks * 5 / 8);
}

// A restore over the network hands over nearly all as it comes.
TEST_F(ChunkCacheTest, WhatIsHandedOverAsItComesIsNotRemembered) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint64_t i = 100; i < 108; ++i) cache_.InsertFetched(DigestOf(i), Data(), Reader::kThisHost);
  }
  EXPECT_GE(CountOf(0, kCacheChunks), kCacheChunks * 5 / 8);
}

// Each of four has fetched ahead what fits into a sixteenth of the cache, as the daemon lets it.
TEST(ChunkCacheOfALargePool, WhatReadersFetchAheadStaysUntilTheyCome) {
  constexpr size_t kMiBs = 1024, kChunks = kMiBs / 8, kBytes = 8 * kMiB, kReaders = 4, kAhead = kChunks / 16;
  auto pool = io::BufferPool::Create({.size_bytes_max = 64 * kMiB, .reserved_count = 8});
  ASSERT_TRUE(pool.ok());
  ChunkCache cache(**pool, kMiBs * kMiB);
  const io::BufferRef buffer = (*pool)->Acquire();  // all chunks lie in it, as far as the cache counts
  auto data = [&] { return ChunkData{{io::Slice{buffer, buffer.payload(), kBytes}}, kBytes}; };
  auto digest = [](uint64_t number) { return MakeChunk(number, 16).digest; };
  for (uint64_t i = 0; i < kChunks; ++i) cache.InsertWritten(digest(i), data().slices, kBytes);
  size_t missed = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    for (uint64_t reader = 1; reader <= kReaders; ++reader) {
      cache.InsertFetched(digest(1000 * reader + i), data(), Reader::kNone);
      if (i >= kAhead && !cache.Find(digest(1000 * reader + i - kAhead), Reader::kThisHost)) ++missed;
    }
  }
  EXPECT_EQ(missed, 0U);
  EXPECT_TRUE(cache.Contains(digest(kChunks / 2)));
}

TEST_F(ChunkCacheTest, KeepsNoBytesThatAreSomebodyElses) {
  TestChunk chunk = MakeChunk(1, kMiB);
  cache_.InsertWritten(chunk.digest, chunk.slices(), chunk.bytes.size());
  EXPECT_FALSE(cache_.Contains(chunk.digest));
  // Memory beside the pool is not for the cache either; small chunks are copied into the pool.
  for (size_t size : {kMiB, 100 * kKiB}) {
    auto memory = std::shared_ptr<std::byte[]>(new std::byte[size]());
    ChunkData data{{io::Slice{{}, memory.get(), size, memory}}, size};
    cache_.InsertRead(DigestOf(size), std::move(data), Reader::kThisHost, Reader::kNone);
    EXPECT_EQ(cache_.Contains(DigestOf(size)), size < kMiB);
    EXPECT_EQ(memory.use_count(), 1);
  }
}

// Through the reader: half of the cache is for what this host reads again, whatever others do.
TEST_F(StoreTest, ReadsOfOtherNodesLeaveWhatThisHostReadsAgain) {
  StoreOptions options = SmallOptions();
  options.cache_bytes_max = 16 * kMiB;
  Open(options);
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < 36; ++i) chunks.push_back(MakeChunk(i, 900'000));
  for (const TestChunk& chunk : chunks) Put(chunk);
  ASSERT_OK(store_->Sync());
  auto stay_after = [&](Reader reader) {
    store_->DropCache();
    for (int turn = 0; turn < 2; ++turn) {
      for (size_t i = 0; i < 24; ++i) ExpectReads(chunks[i]);
    }
    for (int turn = 0; turn < 3; ++turn) {
      for (size_t i = 24; i < chunks.size(); ++i) {
        std::promise<bool> came;
        store_->GetFor(reader, chunks[i].digest, [&](const auto& data) { came.set_value(data.ok()); });
        EXPECT_TRUE(came.get_future().get());
      }
    }
    return std::count_if(chunks.begin(), chunks.begin() + 24,
                         [&](const TestChunk& chunk) { return store_->cache().Contains(chunk.digest); });
  };
  EXPECT_GE(stay_after(Reader::kOtherNode), 8);
  EXPECT_LT(stay_after(Reader::kThisHost), 8);
}

TEST(ChunkCacheOfASmallPool, LeavesRoomForWriters) {
  auto pool = io::BufferPool::Create({.size_bytes_max = 32 * kMiB, .reserved_count = 8});
  ASSERT_TRUE(pool.ok());
  ChunkCache cache(**pool, 24 * kMiB);
  for (uint64_t i = 0; i < 200; ++i) {
    io::BufferRef buffer = (*pool)->TryAcquire();
    while (!buffer && (*pool)->free_count() > 8) buffer = (*pool)->TryAcquire();  // it is being touched
    ASSERT_TRUE(buffer) << "after " << i;
    std::byte* begin = buffer.payload();
    const io::Slice slice{std::move(buffer), begin, kMiB};
    cache.InsertWritten(MakeChunk(i, 16).digest, {&slice, 1}, kMiB);
    cache.Trim();
  }
  cache.Clear();
}

TEST_F(ChunkCacheTest, GivesBuffersBackWhenThePoolIsShort) {
  for (uint64_t i = 0; i < kCacheChunks; ++i) Written(i);
  std::vector<io::BufferRef> taken;
  while (pool_->free_count() >= pool_->count() / 8) taken.push_back(pool_->Acquire());
  cache_.Trim();
  EXPECT_GE(pool_->free_count(), pool_->count() / 4);
  // The new takes the place of the old.
  Written(50);
  EXPECT_TRUE(cache_.Contains(DigestOf(50)));
  cache_.Clear();
  EXPECT_TRUE(cache_.empty());
}

TEST(StreamCopyTest, CopiesEveryByteAndNoMore) {
  std::mt19937_64 random(7);
  for (size_t size : {0, 1, 63, 64, 4095, 16'383, 16'384, 16'385, 20'000, 70'001, 1'000'003}) {
    for (size_t shift : {0, 1, 15, 16, 63}) {
      std::vector<std::byte> from(size + 128), to(size + 256, std::byte{0xee});
      for (std::byte& b : from) b = static_cast<std::byte>(random());
      const size_t begin = 64 + shift;
      StreamCopy(to.data() + begin, from.data() + shift, size);
      EXPECT_EQ(std::memcmp(to.data() + begin, from.data() + shift, size), 0);
      for (size_t i = 0; i < begin; ++i) ASSERT_EQ(to[i], std::byte{0xee});
      for (size_t i = begin + size; i < to.size(); ++i) ASSERT_EQ(to[i], std::byte{0xee});
    }
  }
}

}  // namespace
}  // namespace cairnfs::store
