// The memory of reads without a pool buffer: bounded, in order, and never a deadlock.
#include "store/read_memory.h"

#include <condition_variable>
#include <mutex>

#include "store_fixture.h"

namespace cairnfs::store {
namespace {

TEST(ReadMemory, LetsInUpToItsBoundAndTheRestInOrder) {
  ReadMemory memory(100);
  std::string started;
  EXPECT_TRUE(memory.EnterOrWait(60, [] {}));
  EXPECT_FALSE(memory.EnterOrWait(60, [&] { started += 'a'; }));
  EXPECT_FALSE(memory.EnterOrWait(10, [&] { started += 'b'; }));  // would fit, but came later
  EXPECT_FALSE(memory.TryEnter(10));
  memory.GiveBack(60);
  EXPECT_EQ(started, "ab");
  EXPECT_EQ(memory.bytes(), 70u);
}

TEST(ReadMemory, LetsOneInWhenNoneIsOnItsWay) {
  ReadMemory memory(100);
  std::string started;
  EXPECT_TRUE(memory.TryEnter(90));
  EXPECT_FALSE(memory.EnterOrWait(50, [&] { started += 'a'; }));
  EXPECT_FALSE(memory.EnterOrWait(50, [&] { started += 'b'; }));
  memory.Leave();  // what it read is held on
  EXPECT_EQ(started, "a");
  memory.Leave();
  EXPECT_EQ(started, "ab");
}

class ReadMemoryStoreTest : public StoreTest {
 protected:
  static constexpr size_t kChunkBytes = 700'000;
  static constexpr size_t kChunkCount = 100;

  void SetUp() override {
    pool_ = MakePool(20 * kMiB);
    StoreOptions options = SmallOptions();
    Open(options);
    for (uint64_t i = 0; i < kChunkCount; ++i) {
      chunks_.push_back(MakeChunk(i, kChunkBytes));
      Put(chunks_.back());
    }
    ASSERT_OK(store_->Sync());
    Open(options);
    while (io::BufferRef buffer = pool_->TryAcquire()) taken_.push_back(std::move(buffer));
  }
  // Asks for all chunks at once, and holds what comes until all have come, as one large read does.
  void StartAll() {
    for (const TestChunk& chunk : chunks_) {
      store_->Get(chunk.digest, [this](Result<ChunkData> data) {
        std::lock_guard lock(mutex_);
        EXPECT_TRUE(data.ok());
        if (data.ok()) came_.push_back(std::move(*data));
        ++came_count_;
        came_changed_.notify_all();
      });
    }
  }
  void AwaitAll() {
    std::unique_lock lock(mutex_);
    came_changed_.wait(lock, [this] { return came_count_ == kChunkCount; });
    came_.clear();
  }

  std::vector<TestChunk> chunks_;
  std::vector<io::BufferRef> taken_;
  std::mutex mutex_;
  std::condition_variable came_changed_;
  std::vector<ChunkData> came_;
  size_t came_count_ = 0;
};

TEST_F(ReadMemoryStoreTest, ReadsWithoutBuffersAreBounded) {
  io::Faults slow;
  slow.delay_max = std::chrono::seconds(1);
  disk_.SetFaults(slow);
  const uint64_t reads_before = disk_.GetCounts().reads;
  StartAll();
  EXPECT_LT(disk_.GetCounts().reads - reads_before, kChunkCount / 2);
  disk_.SetFaults(io::Faults());
  AwaitAll();
}

// 70 MB held by one who waits for the rest, in 16 MiB of memory.
TEST_F(ReadMemoryStoreTest, AReaderThatHoldsAndWaitsGetsItAll) {
  StartAll();
  AwaitAll();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
}

TEST_F(ReadMemoryStoreTest, WritersAndReadersShareAnEmptyPool) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([this] {
      for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
    });
  }
  for (uint64_t i = 0; i < 40; ++i) {
    Put(MakeChunk(1000 + i, kChunkBytes));
    if (i % 4 == 0) ASSERT_OK(store_->Sync());
    store_->Prefetch({&chunks_[i].digest, 1});
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cairnfs::store
