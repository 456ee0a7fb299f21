// Put, Get, Sync, reopen, space: what every user of the store relies on.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "../../support/eventually.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

constexpr size_t kSizes[] = {0, 1, 7, 8, 100, 4039, 4040, 4041, 4096, 65'536, 262'144, 500'001, 1'000'000};

TEST_F(StoreTest, ReadsBackWhatWasPut) {
  Open();
  std::vector<TestChunk> chunks;
  for (size_t size : kSizes) chunks.push_back(MakeChunk(1, size));
  for (const TestChunk& chunk : chunks) Put(chunk);
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);  // from the windows
  ASSERT_OK(store_->Sync());
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
  store_->DropCache();
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);  // from the disk
  Open();
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
  EXPECT_EQ(store_->Stats().chunk_count, std::size(kSizes));
}

TEST_F(StoreTest, KnowsWhatItHolds) {
  Open();
  TestChunk chunk = MakeChunk(2, 10'000), other = MakeChunk(3, 10'000);
  Put(chunk);
  Put(chunk, /*is_new=*/false);
  ASSERT_OK(store_->Sync());
  Put(chunk, /*is_new=*/false);
  Digest digests[] = {chunk.digest, other.digest};
  EXPECT_EQ(store_->Has(digests), (std::vector<bool>{true, false}));
  EXPECT_EQ(store_->Pin(other.digest, 0).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(store_->Pin(chunk.digest, 0).ok());
  EXPECT_EQ(GetText(*store_, other.digest).error().code, ErrorCode::kNotFound);
  StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.new_bytes_total, 10'000u);
  EXPECT_EQ(stats.known_bytes_total, 20'000u);
  EXPECT_EQ(stats.unique_bytes, 10'000u);
  EXPECT_EQ(stats.pending_bytes, 0u);
}

// For who shows how far a sync is: what is pending is so until its end.
TEST_F(StoreTest, WhatIsWrittenIsStagedNoMoreBeforeItIsSynced) {
  StoreOptions options = SmallOptions();
  options.segment_bytes = 16 * kMiB;  // several windows of 4 MiB
  Open(options);
  for (uint64_t i = 0; i < 50; ++i) Put(MakeChunk(i, 100'000));
  EXPECT_TRUE(Eventually([&] { return store_->Stats().staged_bytes < 2 * kMiB; }));
  EXPECT_GT(store_->Stats().staged_bytes, 0u) << "the last window is not full";
  EXPECT_EQ(store_->Stats().pending_bytes, 5'000'000u);
  ASSERT_OK(store_->Sync());
  EXPECT_EQ(store_->Stats().staged_bytes, 0u);
  Put(MakeChunk(51, 1000));
  EXPECT_EQ(store_->Stats().staged_bytes, 1000u);
  ASSERT_OK(store_->SyncWithEngine());
  EXPECT_EQ(store_->Stats().staged_bytes, 0u) << "the engine has it, though its window is not written";
}

TEST_F(StoreTest, UnsyncedChunksAreGoneAfterReopen) {
  Open();
  TestChunk synced = MakeChunk(4, 50'000), lost = MakeChunk(5, 50'000);
  Put(synced);
  ASSERT_OK(store_->Sync());
  Put(lost);
  EXPECT_EQ(store_->Stats().pending_bytes, 50'000u);
  Open();
  ExpectReads(synced);
  EXPECT_EQ(store_->Pin(lost.digest, 0).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->Stats().chunk_count, 1u);
}

TEST_F(StoreTest, ManySyncsAndReopens) {
  std::vector<TestChunk> chunks;
  for (uint64_t round = 0; round < 5; ++round) {
    Open();
    for (uint64_t i = 0; i < 20; ++i) {
      chunks.push_back(MakeChunk(100 * round + i, 1 + 20'011 * i));
      Put(chunks.back());
      if (i % 3 == 0) ASSERT_OK(store_->Sync());
    }
    ASSERT_OK(store_->Sync());
  }
  Open();
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
}

TEST_F(StoreTest, LargestChunkOfLargeSegments) {
  StoreOptions options = SmallOptions();
  options.segment_bytes = 16 * kMiB;
  Open(options);
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < 12; ++i) chunks.push_back(MakeChunk(i, 2 * kMiB - i));
  for (const TestChunk& chunk : chunks) Put(chunk);
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
  ASSERT_OK(store_->Sync());
  store_->DropCache();
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
  TestChunk huge = MakeChunk(50, 5 * kMiB);
  EXPECT_EQ(PutChunk(*store_, huge).error().code, ErrorCode::kTooLarge);
}

TEST_F(StoreTest, FullDiskRefusesAndStaysReadable) {
  Open();
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < 1000; ++i) {
    TestChunk chunk = MakeChunk(i, 400'000);
    auto result = PutChunk(*store_, chunk);
    if (!result.ok()) {
      EXPECT_EQ(result.error().code, ErrorCode::kNoSpace);
      EXPECT_EQ(store_->Pin(chunk.digest, 0).error().code, ErrorCode::kNotFound);
      break;
    }
    chunks.push_back(std::move(chunk));
  }
  EXPECT_GT(chunks.size(), 450u);
  EXPECT_LT(chunks.size(), 1000u);
  ASSERT_OK(store_->Sync());
  EXPECT_LT(store_->Stats().available_bytes, 2 * kMiB);
  store_->DropCache();
  for (size_t i = 0; i < chunks.size(); i += 37) ExpectReads(chunks[i]);
  EXPECT_EQ(store_->Stats().last_error, "");
}

TEST_F(StoreTest, ReservationsAreKept) {
  Open();
  uint64_t available = store_->Stats().available_bytes;
  EXPECT_GT(available, 100 * kMiB);
  EXPECT_FALSE(store_->TryReserve(300 * kMiB));
  uint64_t reserved = 0;
  while (store_->TryReserve(100'000)) reserved += 100'000;
  EXPECT_GT(reserved, available / 10 * 9);
  // Everything that was admitted fits.
  for (uint64_t i = 0; i * 100'000 < reserved; ++i) Put(MakeChunk(i, 100'000));
  store_->ReleaseReservation(reserved);
}

TEST_F(StoreTest, ManyReadersShareOneDiskRead) {
  Open();
  TestChunk chunk = MakeChunk(6, 300'000);
  Put(chunk);
  ASSERT_OK(store_->Sync());
  Open();
  io::Faults slow;
  slow.delay_max = std::chrono::milliseconds(20);
  disk_.SetFaults(slow);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) threads.emplace_back([&] { ExpectReads(chunk); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(store_->Stats().disk_read_bytes_total, 2 * 310'000u);
  store_->Prefetch({&chunk.digest, 1});
}

TEST_F(StoreTest, ChunksSideBySideAreReadTogether) {
  Open();
  std::vector<TestChunk> chunks;
  std::vector<Digest> digests;
  size_t bytes = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    chunks.push_back(MakeChunk(1000 + i, i % 8 == 0 ? 100 : 9'000 + i * 1000));
    Put(chunks.back());
    digests.push_back(chunks.back().digest);
    bytes += chunks.back().bytes.size();
  }
  ASSERT_OK(store_->Sync());
  Open();
  const uint64_t reads_before = disk_.GetCounts().reads;
  digests.push_back(MakeChunk(1, 10).digest);  // not there: told to nobody
  store_->Prefetch(digests);
  for (const TestChunk& chunk : chunks) ExpectReads(chunk);
  EXPECT_LE(disk_.GetCounts().reads - reads_before, 8U);
  EXPECT_LE(store_->Stats().disk_read_bytes_total, bytes + 40 * kPageBytes);
}

TEST_F(StoreTest, SameChunkFromManyThreadsIsStoredOnce) {
  Open();
  for (uint64_t round = 0; round < 20; ++round) {
    TestChunk chunk = MakeChunk(round, 200'000);
    std::atomic<int> new_count{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        auto result = PutChunk(*store_, chunk);
        ASSERT_OK(result);
        new_count += result->is_new;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(new_count, 1);
  }
}

TEST_F(StoreTest, ReadsGoOnWhenThePoolIsEmpty) {
  Open();
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < 10; ++i) chunks.push_back(MakeChunk(i, 700'000));
  for (const TestChunk& chunk : chunks) Put(chunk);
  ASSERT_OK(store_->Sync());
  Open();
  std::vector<io::BufferRef> taken;
  while (io::BufferRef buffer = pool_->TryAcquire()) taken.push_back(std::move(buffer));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const TestChunk& chunk : chunks) ExpectReads(chunk);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The real disk, with direct I/O where the file system below has it.
TEST_F(StoreTest, OnARealDisk) {
  std::string path = std::filesystem::temp_directory_path() / "cairnfs-store-XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < 40; ++i) chunks.push_back(MakeChunk(i, 1 + 25'011 * i));
  for (bool reopened : {false, true}) {
    auto disk = io::OpenDisk({.path = path});
    ASSERT_OK(disk);
    auto store = LocalChunkStore::Open(**disk, *engine_, *pool_, SmallOptions());
    ASSERT_OK(store);
    for (const TestChunk& chunk : chunks) {
      auto put = PutChunk(**store, chunk);
      ASSERT_OK(put);
      EXPECT_EQ(put->is_new, !reopened);
    }
    ASSERT_OK((*store)->Sync());
    (*store)->DropCache();
    for (const TestChunk& chunk : chunks) {
      auto text = GetText(**store, chunk.digest);
      ASSERT_OK(text);
      EXPECT_TRUE(*text == chunk.bytes);
    }
    (*store)->BeginCollection();
    SweepProgress progress;
    ASSERT_OK((*store)->Sweep(
        {}, [&](const Digest& digest) { return (digest.bytes[0] & std::byte{1}) == std::byte{0} || !reopened; },
        SweepOptions(), progress));
  }
  std::filesystem::remove_all(path);
}

// A few small chunks are durable with the engine: no segment is synced, and a power cut takes what was written of it.
TEST_F(StoreTest, SmallChunksAreDurableWithTheEngine) {
  Open();
  const std::vector<TestChunk> chunks{MakeChunk(1, 1), MakeChunk(2, 1000), MakeChunk(3, 20'000)};
  const TestChunk large = MakeChunk(4, 100'000);
  Put(large);
  const uint64_t syncs_before = disk_.GetCounts().syncs;
  ASSERT_OK(store_->SyncWithEngine());
  EXPECT_GT(disk_.GetCounts().syncs, syncs_before) << "that much is not written twice";
  const uint64_t syncs = disk_.GetCounts().syncs;
  for (const TestChunk& chunk : chunks) {
    Put(chunk);
    EXPECT_GT(store_->Stats().pending_bytes, 0u);
    ASSERT_OK(store_->SyncWithEngine());
    EXPECT_EQ(store_->Stats().pending_bytes, 0u);
  }
  EXPECT_EQ(disk_.GetCounts().syncs, syncs);
  for (int times = 0; times < 2; ++times) {
    store_.reset();
    memory_.Crash(1);
    Open();
    EXPECT_EQ(store_->Stats().chunk_count, 4u);
    for (const TestChunk& chunk : chunks) ExpectReads(chunk);
    ExpectReads(large);
  }
  Put(chunks[1], /*is_new=*/false);
}

// Enough small chunks are synced in their segment, and the engine need not keep them.
TEST_F(StoreTest, TheEngineKeepsFewSmallChunks) {
  Open();
  const auto count_kept = [&] {
    uint64_t kept = 0;
    auto count = [&](std::string_view, std::string_view) { return ++kept > 0; };
    EXPECT_TRUE(engine_->Scan("J", "K", nullptr, count).ok());
    return kept;
  };
  for (uint64_t i = 0; i < 600; ++i) {
    Put(MakeChunk(i, 100));
    ASSERT_OK(store_->SyncWithEngine());
    if (i == 500) {
      EXPECT_EQ(count_kept(), 501u);
    }
  }
  EXPECT_LE(count_kept(), 100u);
  ASSERT_OK(store_->Sync());
  EXPECT_EQ(count_kept(), 0u);
}

// Whoever comes to make room must get in.
TEST_F(StoreTest, WithoutRoomForThemItOpensAndSmallChunksAreKept) {
  Open();
  const TestChunk chunk = MakeChunk(1, 1000);
  Put(chunk);
  ASSERT_OK(store_->SyncWithEngine());
  store_.reset();
  memory_.Crash(1);
  io::Faults full;
  full.growth_bytes_max = 0;
  disk_.SetFaults(full);
  Open();
  EXPECT_FALSE(GetText(*store_, chunk.digest).ok());
  static_cast<void>(store_->Sync().ok());  // nor does a sync take them from where they are
  disk_.SetFaults({});
  static_cast<void>(store_->Sync().ok());
  Open();
  ExpectReads(chunk);
}

}  // namespace
}  // namespace cairnfs::store
