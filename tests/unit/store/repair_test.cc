// Damage that was found: what is put again replaces it, and what lies around it stays as it was.
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "crash_engine.h"
#include "damage_fixture.h"
#include "hooked_engine.h"

namespace cairnfs::store {
namespace {

class RepairTest : public DamageTest {
 protected:
  Status Collect(const std::set<size_t>& dead, SweepProgress* progress = nullptr) {
    std::set<Digest> digests;
    for (size_t i : dead) digests.insert(chunks_[i].digest);
    SweepProgress own;
    store_->BeginCollection();
    return store_->Sweep(
        {}, [&](const Digest& digest) { return !digests.contains(digest); }, SweepOptions(),
        progress ? *progress : own);
  }
  // Leaves chunks_[0] damaged on the disk, that known, and no index entry for it in the engine.
  void PutAndDamageUnsynced() {
    chunks_.push_back(MakeChunk(1, 50'000));
    Put(chunks_[0]);
    for (uint64_t i = 0; i < 25; ++i) Put(MakeChunk(100 + i, 100'000));
    while (store_->Stats().disk_write_bytes_total < 18 * kMiB / 10) std::this_thread::yield();
    const std::string name = MakeSegmentName(SegmentName::kSegment, SegmentId{1});
    ASSERT_TRUE(memory_.FlipBit(name, (kSegmentHeaderBytes + kRecordHeaderBytes + 100) * 8));
    ASSERT_EQ(ReadCode(chunks_[0]), ErrorCode::kCorrupt);
  }
  // Puts the chunk, whose damage is known, and looks at everything before and after a sync and a restart.
  void ExpectRepairedByPut(const TestChunk& chunk) {
    const StoreStats before = store_->Stats();
    Put(chunk, /*is_new=*/true);
    ExpectReads(chunk);
    Put(chunk, /*is_new=*/false);
    ASSERT_OK(store_->Sync());
    store_->DropCache();
    ExpectReads(chunk);
    EXPECT_EQ(Problems(), std::vector<std::string>{});
    EXPECT_EQ(store_->Stats().chunk_count, before.chunk_count);
    EXPECT_EQ(store_->Stats().unique_bytes, before.unique_bytes);
    EXPECT_GE(store_->Stats().dead_bytes, chunk.bytes.size());
    Open();
    ExpectReads(chunk);
    EXPECT_EQ(Problems(), std::vector<std::string>{});
    EXPECT_EQ(store_->Stats().chunk_count, before.chunk_count);
    EXPECT_EQ(store_->Stats().unique_bytes, before.unique_bytes);
    Put(chunk, /*is_new=*/false);
  }
};

TEST_F(RepairTest, PutReplacesWhatAReadFoundDamaged) {
  Fill();
  Flip(chunks_[3]);
  Put(chunks_[3], /*is_new=*/false);  // nobody knows yet
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kCorrupt);
  ExpectRepairedByPut(chunks_[3]);
}

TEST_F(RepairTest, PutReplacesWhatCannotBeRead) {
  Fill();
  BreakSector(chunks_[3]);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kIo);
  ExpectRepairedByPut(chunks_[3]);
}

TEST_F(RepairTest, PutReplacesWhatACheckFoundDamaged) {
  Fill();
  Flip(chunks_[3]);
  ASSERT_EQ(Problems().size(), 1u);
  ExpectRepairedByPut(chunks_[3]);
}

TEST_F(RepairTest, PutReplacesWhatACompactionFoundDamaged) {
  Fill();
  Flip(chunks_[3]);
  ASSERT_OK(Collect({4, 5}));
  ExpectRepairedByPut(chunks_[3]);
}

TEST_F(RepairTest, ADamagedSegmentGoesOnceItsChunksAreReplaced) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  Flip(chunks_[3]);
  ASSERT_OK(Collect({4, 5}));
  EXPECT_EQ(SegmentOf(chunks_[3]), name);
  Put(chunks_[3], /*is_new=*/true);
  ASSERT_OK(Collect({4, 5}));
  EXPECT_FALSE(memory_.Contents(name).has_value());
  ExpectReads(chunks_[3]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// The copy that is damaged has no entry in the engine yet.
TEST_F(RepairTest, PutReplacesWhatIsStillPending) {
  Open();
  PutAndDamageUnsynced();
  EXPECT_GT(store_->Stats().pending_bytes, 0u);
  ExpectRepairedByPut(chunks_[0]);
}

// The entry of the damaged copy is being written when the sound one comes.
TEST_F(RepairTest, PutReplacesWhatIsBeingSynced) {
  HookedEngine hooked(*engine_);
  auto store = LocalChunkStore::Open(disk_, hooked, *pool_, SmallOptions());
  ASSERT_OK(store);
  store_ = std::move(*store);
  PutAndDamageUnsynced();
  bool done = false;
  hooked.SetWriteHook([&]() -> Status {
    if (!std::exchange(done, true)) Put(chunks_[0], /*is_new=*/true);
    return {};
  });
  ASSERT_OK(store_->Sync());
  EXPECT_TRUE(done);
  EXPECT_EQ(store_->Stats().pending_bytes, chunks_[0].bytes.size());
  ExpectReads(chunks_[0]);
  ASSERT_OK(store_->Sync());
  EXPECT_EQ(store_->Stats().pending_bytes, 0u);
  ExpectReads(chunks_[0]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
  store_.reset();  // before the engine that it is on
}

TEST_F(RepairTest, ADamagedChunkPutByManyIsStoredOnce) {
  Fill();
  for (size_t round = 0; round < chunks_.size(); ++round) {
    const TestChunk& chunk = chunks_[round];
    Flip(chunk);
    EXPECT_EQ(ReadCode(chunk), ErrorCode::kCorrupt);
    std::atomic<int> new_count{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        auto result = PutChunk(*store_, chunk);
        ASSERT_OK(result);
        new_count += result->is_new;
        if (i == 0) ASSERT_OK(store_->Sync());
      });
    }
    std::thread reader([&] { (void)GetText(*store_, chunk.digest); });
    for (std::thread& thread : threads) thread.join();
    reader.join();
    EXPECT_EQ(new_count, 1);
  }
  ASSERT_OK(store_->Sync());
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// A name that is durable after the put of the sound copy never finds the damaged one, wherever the power is cut.
TEST_F(RepairTest, ACutWhileDamageIsReplacedLosesNothing) {
  const TestChunk chunk = MakeChunk(1, 30'000);
  int cut_count = 0;
  for (uint64_t cut_at = 1; cut_at < 40; ++cut_at) {
    PowerSwitch power;
    io::MemoryDisk disk(io::MemoryDisk::Options{.size_bytes = 64 * kMiB});
    SwitchedDisk switched(disk, power);
    CrashEngine engine(power);
    std::atomic<bool> cut{false};
    auto open = [&] {
      auto store = LocalChunkStore::Open(switched, engine, *pool_, SmallOptions());
      EXPECT_TRUE(store.ok());
      return std::move(*store);
    };
    auto store = open();
    ASSERT_OK(PutChunk(*store, chunk));
    for (uint64_t i = 0; i < 6; ++i) ASSERT_OK(PutChunk(*store, MakeChunk(100 + i, 50'000)));  // dead soon
    ASSERT_OK(store->Sync());
    ASSERT_OK(engine.Write({{"K", "old"}}, kv::WriteMode::kSynced));
    const uint64_t at = kSegmentHeaderBytes + kRecordHeaderBytes + 100;
    ASSERT_TRUE(disk.FlipBit(MakeSegmentName(SegmentName::kSegment, SegmentId{1}), at * 8));
    ASSERT_FALSE(GetText(*store, chunk.digest).ok());
    power.Arm(cut_at, [&] {
      switched.Refuse(true);
      engine.Crash(cut_at);
      disk.Crash(cut_at);
      cut = true;
    });
    auto put = PutChunk(*store, chunk);
    if (put.ok() && store->Sync().ok()) (void)engine.Write({{"K", "new"}}, kv::SyncedIf(cut_at % 2 == 0));
    store->BeginCollection();
    SweepProgress progress;
    (void)store->Sweep(
        {}, [&](const Digest& digest) { return digest == chunk.digest; }, SweepOptions(), progress);
    if (put.ok()) put->pin = ChunkPin();
    store.reset();
    power.Disarm();
    cut_count += cut;
    switched.Refuse(false);
    engine.Restart();
    store = open();
    auto text = GetText(*store, chunk.digest);
    const bool named = **engine.Get("K", nullptr) == "new";
    EXPECT_TRUE(text.ok() || (!named && text.error().code == ErrorCode::kCorrupt)) << "cut at " << cut_at;
  }
  EXPECT_GE(cut_count, 8);
}

// --- one bad sector ------------------------------------------------------------------------------------------------

TEST_F(RepairTest, ACheckFindsOnlyWhatABadSectorHit) {
  Fill();
  BreakSector(chunks_[3]);
  std::vector<std::string> problems = Problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find(chunks_[3].digest.ToHex()), std::string::npos) << problems[0];
}

// A file that cannot be opened now says nothing about its chunks.
TEST_F(RepairTest, ACheckTakesALackOfDescriptorsForNoDamage) {
  Fill();
  disk_.SetFaults({.opens_max = 0});
  std::vector<CheckProblem> problems;
  ASSERT_OK(store_->Check({}, [&](const CheckProblem& problem) { problems.push_back(problem); }));
  disk_.SetFaults(io::Faults());
  ASSERT_FALSE(problems.empty());
  for (const CheckProblem& problem : problems) EXPECT_TRUE(problem.chunks.empty()) << problem.what;
  Put(chunks_[3], /*is_new=*/false);
  ExpectReads(chunks_[3]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(RepairTest, ACompactionWithoutDescriptorsFailsAndFindsNoDamage) {
  Fill();
  disk_.SetFaults({.opens_max = 0});
  const Status collected = Collect({4, 5, 6, 7, 8, 9});
  disk_.SetFaults(io::Faults());
  ASSERT_FALSE(collected.ok());
  EXPECT_EQ(collected.error().code, ErrorCode::kExhausted) << collected.error().message;
  ASSERT_OK(Collect({4, 5, 6, 7, 8, 9}));
  ExpectReads(chunks_[3]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(RepairTest, CompactionGoesOnBehindABadSector) {
  Fill(90);
  const std::string name = SegmentOf(chunks_[3]);
  std::set<size_t> dead;
  for (size_t i = 0; i < 30; ++i) {
    if (i % 3 != 0) dead.insert(i);  // the least live segment first: the broken one
  }
  for (size_t i = 30; i < 90; i += 2) dead.insert(i);
  BreakSector(chunks_[3]);
  SweepProgress progress;
  ASSERT_OK(Collect(dead, &progress));
  EXPECT_GE(progress.segments_freed.load(), 2u);
  EXPECT_EQ(SegmentOf(chunks_[3]), name);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kIo);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i != 3 && !dead.contains(i)) ExpectReads(chunks_[i]);
  }
  EXPECT_NE(SegmentOf(chunks_[6]), name);  // its sound chunks have moved
}

TEST_F(RepairTest, ANeighbourThatFailsDoesNotFailThoseReadWithIt) {
  Fill();
  Flip(chunks_[3]);
  std::vector<Digest> digests;
  for (const TestChunk& chunk : chunks_) digests.push_back(chunk.digest);
  const uint64_t reads_before = disk_.GetCounts().reads;
  store_->Prefetch(digests);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i != 3) ExpectReads(chunks_[i]);
  }
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kCorrupt);
  EXPECT_LT(disk_.GetCounts().reads - reads_before, chunks_.size());
}

// Readers that join a read for several chunks see no error of a neighbour.
TEST_F(RepairTest, ABadSectorFailsOnlyItsChunkInAReadForSeveral) {
  Fill();
  io::Faults faults;
  const uint64_t bad = AlignUp(Find(chunks_[5]).data_offset(), kPageBytes);
  faults.bad_sectors.push_back({SegmentOf(chunks_[5]), bad, bad + 512});
  faults.delay_max = std::chrono::milliseconds(200);
  disk_.SetFaults(faults);
  std::vector<Digest> digests;
  for (const TestChunk& chunk : chunks_) digests.push_back(chunk.digest);
  store_->Prefetch(digests);
  std::vector<std::promise<Result<ChunkData>>> came(chunks_.size());
  for (size_t i = 0; i < chunks_.size(); ++i) {
    store_->Get(chunks_[i].digest, [&came, i](Result<ChunkData> data) { came[i].set_value(std::move(data)); });
  }
  disk_.SetFaults({.bad_sectors = faults.bad_sectors});
  for (size_t i = 0; i < chunks_.size(); ++i) EXPECT_EQ(came[i].get_future().get().ok(), i != 5) << i;
}

// --- beside the engine ---------------------------------------------------------------------------------------------

TEST_F(RepairTest, NoSnapshotLivesWhileACheckReadsSegments) {
  Fill();
  Flip(chunks_[3]);
  store_.reset();
  HookedEngine hooked(*engine_);
  auto store = LocalChunkStore::Open(disk_, hooked, *pool_, SmallOptions());
  ASSERT_OK(store);
  int calls = 0;
  ASSERT_OK((*store)->Check({}, [&](const CheckProblem&) {
    ++calls;
    EXPECT_EQ(hooked.live_snapshots(), 0);
  }));
  EXPECT_EQ(calls, 1);
}

// --- opening -------------------------------------------------------------------------------------------------------

TEST_F(RepairTest, OpeningCutsNoChunkThatTheIndexNames) {
  Open();
  for (uint64_t i = 0; i < 5; ++i) {
    chunks_.push_back(MakeChunk(i, 30'000));
    Put(chunks_.back());
  }
  ASSERT_OK(store_->Sync());
  store_.reset();
  // As after a rebuilding: nothing says how far the segment was synced.
  IndexCounters counters = *DecodeCounters(**engine_->Get(kCountersKey));
  counters.open_segment = SegmentId{};
  counters.open_synced_end = 0;
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), EncodeCounters(counters)}}, kv::WriteMode::kSynced));
  ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunks_[4]), (Find(chunks_[4]).offset + 10) * 8));
  const size_t size_before = memory_.Contents(SegmentOf(chunks_[4]))->size();
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
  EXPECT_LT(memory_.Contents(SegmentOf(chunks_[4]))->size(), size_before);  // and yet it was cut
}

TEST_F(RepairTest, AnUnreadableHeaderCostsNoChunk) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  store_.reset();
  io::Faults faults;
  faults.bad_sectors.push_back({name, 0, 512});
  disk_.SetFaults(faults);
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
}

TEST_F(RepairTest, AnUnreadableHeaderOfASegmentThatTheIndexDoesNotName) {
  Fill();
  const SegmentId id{77};
  const std::string unnamed = MakeSegmentName(SegmentName::kSegment, id);
  {
    auto file = disk_.Create(unnamed);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Allocate(kMiB));
  }
  disk_.SetFaults({.bad_sectors = {{unnamed, 0, 512}}});
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
  EXPECT_EQ(Problems().size(), 1u);
  ASSERT_OK(Collect({}));
  EXPECT_FALSE(memory_.Contents(unnamed).has_value());
  EXPECT_FALSE(memory_.Contents(MakeSegmentName(SegmentName::kFree, id)).has_value()) << "its place is bad";
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(RepairTest, ADiskThatIsAwayIsNoDamage) {
  Fill();
  store_.reset();
  io::Faults faults;
  faults.read_error_share = 1;
  disk_.SetFaults(faults);
  EXPECT_EQ(OpenError().code, ErrorCode::kIo);
  disk_.SetFaults(io::Faults());
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
}

// What was accepted must not be lost to an entry that an earlier write of the same bytes has left.
TEST_F(RepairTest, PutReplacesAnEntryThatDoesNotDecode) {
  Fill();
  const TestChunk& chunk = chunks_[3];
  ASSERT_OK(engine_->Write({{ChunkKey(chunk.digest), "no location"}}, kv::WriteMode::kSynced));
  Open();
  Put(chunk, /*is_new=*/true);
  ASSERT_OK(store_->Sync());
  store_->DropCache();
  ExpectReads(chunk);
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [](const Digest&) { return true; }, SweepOptions(), progress));
  EXPECT_EQ(store_->Stats().chunk_count, chunks_.size());
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(RepairTest, PutGoesOnWhereTheEngineCannotReadTheEntry) {
  for (ErrorCode code : {ErrorCode::kIo, ErrorCode::kCorrupt}) {
    HookedEngine hooked(*engine_);
    auto store = LocalChunkStore::Open(disk_, hooked, *pool_, SmallOptions());
    ASSERT_OK(store);
    store_ = std::move(*store);
    const TestChunk chunk = MakeChunk(static_cast<uint64_t>(code), 50'000);
    hooked.SetReadHook([&](std::string_view key) -> Status {
      if (key == ChunkKey(chunk.digest)) return MakeError(code, "the block cannot be read");
      return {};
    });
    Put(chunk, /*is_new=*/true);
    hooked.SetReadHook(nullptr);
    ASSERT_OK(store_->Sync());
    store_->DropCache();
    ExpectReads(chunk);
    store_.reset();  // before the engine that it is on
  }
}

}  // namespace
}  // namespace cairnfs::store
