// Collection: what is dead goes, what is live, pinned or recorded stays, and the disk gets its room back.
#include <atomic>
#include <set>
#include <thread>

#include "../../support/eventually.h"
#include "base/clock.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

class CollectTest : public StoreTest {
 protected:
  Status Collect(const std::set<Digest>& live, SweepProgress* progress = nullptr) {
    SweepProgress own;
    store_->BeginCollection();
    return store_->Sweep(
        {}, [&](const Digest& digest) { return live.contains(digest); }, SweepOptions(), progress ? *progress : own);
  }
  // Files of freed segments go beside what comes next. False: the figures do not become so.
  bool StatsBecome(const std::function<bool(const StoreStats&)>& condition) {
    return Eventually([&] { return condition(store_->Stats()); });
  }
  void ExpectClean() {
    std::vector<std::string> problems;
    ASSERT_OK(store_->Check({}, [&](const CheckProblem& problem) { problems.push_back(problem.what); }));
    EXPECT_EQ(problems, std::vector<std::string>{});
  }
};

TEST_F(CollectTest, DeadChunksGoAndTheDiskShrinks) {
  Open();
  std::set<Digest> live;
  std::vector<TestChunk> kept, dropped;
  uint64_t live_bytes = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    TestChunk chunk = MakeChunk(i, 60'000 + 400 * (i % 100));
    Put(chunk);
    if (i % 7 == 0) ASSERT_OK(store_->Sync());
    if (i % 3 == 0) {
      live.insert(chunk.digest);
      live_bytes += chunk.bytes.size();
      kept.push_back(std::move(chunk));
    } else {
      dropped.push_back(std::move(chunk));
    }
  }
  SweepProgress progress;
  ASSERT_OK(Collect(live, &progress));
  EXPECT_EQ(progress.chunks_freed, dropped.size());
  EXPECT_EQ(progress.chunks_seen, 300u);
  EXPECT_GT(progress.segments_freed, 15u);
  for (const TestChunk& chunk : dropped) EXPECT_FALSE(store_->Pin(chunk.digest, 0).ok());
  store_->DropCache();
  for (const TestChunk& chunk : kept) ExpectReads(chunk);
  EXPECT_EQ(store_->Stats().chunk_count, kept.size());
  EXPECT_EQ(store_->Stats().unique_bytes, live_bytes);
  EXPECT_TRUE(StatsBecome([&](const StoreStats& stats) {
    return stats.segment_bytes - stats.free_segment_bytes <= live_bytes * 11 / 10 + 3 * kMiB &&
           stats.free_segment_bytes <= 4 * kMiB;
  }));
  ExpectClean();
  Open();
  for (const TestChunk& chunk : kept) ExpectReads(chunk);
  ExpectClean();
  // Freed segments serve again.
  for (const TestChunk& chunk : dropped) Put(chunk);
  ASSERT_OK(store_->Sync());
  store_->DropCache();
  for (const TestChunk& chunk : dropped) ExpectReads(chunk);
  ExpectClean();
}

TEST_F(CollectTest, PinnedAndRecordedChunksStay) {
  Open();
  TestChunk pinned = MakeChunk(1, 5000), put_again = MakeChunk(2, 5000), asked = MakeChunk(3, 5000),
            unpinned_late = MakeChunk(4, 5000), dead = MakeChunk(5, 5000), fresh = MakeChunk(6, 5000);
  for (const TestChunk* chunk : {&pinned, &put_again, &asked, &unpinned_late, &dead}) Put(*chunk);
  ASSERT_OK(store_->Sync());
  auto pin = store_->Pin(pinned.digest, 0);
  ASSERT_OK(pin);
  {
    auto late = store_->Pin(unpinned_late.digest, 0);
    ASSERT_OK(late);
    store_->BeginCollection();
  }
  Put(put_again, /*is_new=*/false);
  Put(fresh);
  EXPECT_TRUE(store_->Has(std::span(&asked.digest, 1))[0]);
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [](const Digest&) { return false; }, SweepOptions(), progress));
  EXPECT_EQ(progress.chunks_freed, 1u);
  for (const TestChunk* chunk : {&pinned, &put_again, &asked, &unpinned_late, &fresh}) ExpectReads(*chunk);
  EXPECT_FALSE(store_->Pin(dead.digest, 0).ok());
  // The next collection remembers nothing of them.
  ASSERT_OK(Collect({}));
  EXPECT_EQ(store_->Stats().chunk_count, 1u);
  ExpectReads(pinned);
}

// A count says what a sweep at that moment would keep and remove, and removes nothing.
TEST_F(CollectTest, ACountTellsWhatASweepWouldFree) {
  Open();
  TestChunk pinned = MakeChunk(1, 5000), live = MakeChunk(2, 6000), put_again = MakeChunk(3, 7000),
            dead = MakeChunk(4, 8000), pending = MakeChunk(5, 9000);
  for (const TestChunk* chunk : {&pinned, &live, &put_again, &dead}) Put(*chunk);
  ASSERT_OK(store_->Sync());
  auto pin = store_->Pin(pinned.digest, 0);
  ASSERT_OK(pin);
  const auto is_live = [&](const Digest& digest) { return digest == live.digest; };
  for (int times = 0; times < 2; times++) {
    store_->BeginCollection();
    Put(put_again, /*is_new=*/false);
    Put(pending, /*is_new=*/times == 0);
    auto counted = store_->CountLive({}, is_live);
    ASSERT_OK(counted);
    EXPECT_EQ(counted->unreferenced_chunks, 1u);
    EXPECT_EQ(counted->unreferenced_bytes, dead.bytes.size());
    EXPECT_EQ(counted->live_chunks, 4u);
    EXPECT_EQ(counted->live_bytes, 5000u + 6000 + 7000 + 9000);
  }
  ExpectReads(dead);
  // What was put in a count is not remembered after it.
  ASSERT_OK(store_->Sync());
  store_->BeginCollection();
  auto counted = store_->CountLive({}, is_live);
  ASSERT_OK(counted);
  EXPECT_EQ(counted->unreferenced_bytes, 8000u + 7000 + 9000);
  std::stop_source stop;
  stop.request_stop();
  store_->BeginCollection();
  EXPECT_EQ(store_->CountLive(Context(stop.get_token()), is_live).error().code, ErrorCode::kInterrupted);
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep({}, is_live, SweepOptions(), progress));
  EXPECT_EQ(progress.bytes_freed, counted->unreferenced_bytes);
}

TEST_F(CollectTest, AbortedCollectionDeletesNothing) {
  Open();
  TestChunk chunk = MakeChunk(1, 5000);
  Put(chunk);
  ASSERT_OK(store_->Sync());
  store_->BeginCollection();
  store_->AbortCollection();
  ExpectReads(chunk);
  std::stop_source stop;
  stop.request_stop();
  store_->BeginCollection();
  SweepProgress progress;
  Status status = store_->Sweep(
      Context(stop.get_token()), [](const Digest&) { return false; }, SweepOptions(), progress);
  EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
  ExpectReads(chunk);
}

TEST_F(CollectTest, DeletingMakesRoomOnAFullDisk) {
  Open();
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0;; ++i) {
    TestChunk chunk = MakeChunk(i, 300'000);
    auto result = PutChunk(*store_, chunk);
    if (!result.ok()) break;
    chunks.push_back(std::move(chunk));
  }
  ASSERT_OK(store_->Sync());
  std::set<Digest> live;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i % 2 == 0) live.insert(chunks[i].digest);  // half of every segment
  }
  ASSERT_OK(Collect(live));
  EXPECT_TRUE(StatsBecome([](const StoreStats& stats) { return stats.available_bytes > 50 * kMiB; }));
  for (uint64_t i = 0; i < 200; ++i) Put(MakeChunk(100'000 + i, 300'000));
  ASSERT_OK(store_->Sync());
  store_->DropCache();
  for (size_t i = 0; i < chunks.size(); i += 10) ExpectReads(chunks[i]);
  ExpectClean();
}

TEST_F(CollectTest, ManySmallLeftoversAreMerged) {
  std::set<Digest> live;
  for (uint64_t i = 0; i < 80; ++i) {
    Open();
    TestChunk chunk = MakeChunk(i, 100);
    Put(chunk);
    ASSERT_OK(store_->Sync());
    Put(MakeChunk(1000 + i, 20'000));
    ASSERT_OK(store_->Sync());
    live.insert(chunk.digest);
  }
  EXPECT_GT(store_->Stats().segment_count, 70u);
  ASSERT_OK(Collect(live));
  EXPECT_TRUE(StatsBecome([](const StoreStats& stats) { return stats.segment_count < 3; }));
  ExpectClean();
}

// The sweep has not counted what is live in the segments that are filled while it looks.
TEST_F(CollectTest, WhatIsSavedDuringASweepIsNotMoved) {
  Open();
  Put(MakeChunk(0, 5000));
  std::vector<TestChunk> saved;
  for (uint64_t i = 1; i <= 60; ++i) saved.push_back(MakeChunk(i, 100'000));
  bool has_saved = false;
  auto save_once = [&](const Digest&) {
    if (std::exchange(has_saved, true)) return true;
    for (const TestChunk& chunk : saved) Put(chunk);
    EXPECT_TRUE(store_->Sync().ok());
    return true;
  };
  SweepProgress progress;
  store_->BeginCollection();
  ASSERT_OK(store_->Sweep({}, save_once, SweepOptions(), progress));
  ASSERT_TRUE(has_saved);
  EXPECT_EQ(progress.bytes_moved, 0u);
  for (const TestChunk& chunk : saved) ExpectReads(chunk);
  ExpectClean();
}

TEST_F(CollectTest, CompactionKeepsToItsRate) {
  Open();
  std::set<Digest> live;
  for (uint64_t i = 0; i < 40; ++i) {
    TestChunk chunk = MakeChunk(i, 50'000);
    Put(chunk);
    if (i % 2) live.insert(chunk.digest);
  }
  ASSERT_OK(store_->Sync());
  store_->BeginCollection();
  SweepProgress progress;
  SweepOptions options;
  options.bytes_per_second_max = 4'000'000;
  auto begin = Clock::Now();
  ASSERT_OK(store_->Sweep(
      {}, [&](const Digest& digest) { return live.contains(digest); }, options, progress));
  double seconds = std::chrono::duration<double>(Clock::Now() - begin).count();
  EXPECT_GT(progress.bytes_moved, 500'000u);
  EXPECT_GT(seconds, static_cast<double>(progress.bytes_moved) / 4e6 * 0.7);
}

// Savers, readers and a collector at once. The savers keep a register of what is named, as the namespace would.
TEST_F(CollectTest, SavesAndReadsBesideCollections) {
  Open();
  constexpr uint64_t kDigests = 200;
  std::vector<TestChunk> chunks;
  for (uint64_t i = 0; i < kDigests; ++i) chunks.push_back(MakeChunk(i, 3000 + 97 * i));
  std::mutex mutex;
  std::set<Digest> named;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < 3; ++worker) {
    threads.emplace_back([&, worker] {
      std::mt19937_64 random(worker);
      while (!stop) {
        const TestChunk& chunk = chunks[random() % kDigests];
        bool is_named;
        {
          auto put = PutChunk(*store_, chunk);
          ASSERT_OK(put);
          if (random() % 8 == 0) ASSERT_OK(store_->Sync());
          std::lock_guard lock(mutex);
          is_named = random() % 2 == 0;
          if (is_named) named.insert(chunk.digest);
        }
        std::lock_guard lock(mutex);
        if (named.contains(chunk.digest)) {
          auto pin = store_->Pin(chunk.digest, 0);
          ASSERT_OK(pin);
        }
        if (random() % 2 == 0) named.erase(chunk.digest);
      }
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(99);
    while (!stop) {
      const TestChunk& chunk = chunks[random() % kDigests];
      ChunkPin pin;
      {
        std::lock_guard lock(mutex);
        if (!named.contains(chunk.digest)) continue;
        auto pinned = store_->Pin(chunk.digest, 0);
        ASSERT_OK(pinned);
        pin = *std::move(pinned);
      }
      if (random() % 4 == 0) store_->DropCache();
      if (random() % 4 == 0) store_->Prefetch({&chunk.digest, 1});
      ExpectReads(chunk);
    }
  });
  constexpr uint64_t kRounds = 200, kRoundsMax = 10'000;
  uint64_t freed = 0, rounds = 0;
  while ((rounds < kRounds || (freed <= 5 && rounds < kRoundsMax)) && !HasFailure()) {
    store_->BeginCollection();
    std::set<Digest> marked;
    {
      std::lock_guard lock(mutex);
      marked = named;
    }
    SweepProgress progress;
    const Status swept = store_->Sweep(
        {}, [&](const Digest& digest) { return marked.contains(digest); }, SweepOptions(), progress);
    EXPECT_TRUE(swept.ok());  // no ASSERT: the threads run
    freed += progress.segments_freed;
    ++rounds;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(freed, 5u);
  for (const TestChunk& chunk : chunks) {
    if (named.contains(chunk.digest)) ExpectReads(chunk);
  }
  ASSERT_OK(store_->Sync());
  ExpectClean();
}

}  // namespace
}  // namespace cairnfs::store
