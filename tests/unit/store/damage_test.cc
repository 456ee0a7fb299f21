// Damage: flipped, cut and missing segments, failing disks; clear errors, no crash, and what is sound stays readable.
#include <algorithm>
#include <future>
#include <optional>

#include "../../support/eventually.h"
#include "damage_fixture.h"

namespace cairnfs::store {
namespace {

TEST_F(DamageTest, FlippedByteIsCorrupt) {
  Fill();
  EXPECT_EQ(Problems(), std::vector<std::string>{});
  Location location = Find(chunks_[3]);
  ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunks_[3]), (location.data_offset() + 100) * 8));
  auto text = GetText(*store_, chunks_[3].digest);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(text.error().message.find(SegmentOf(chunks_[3])), std::string::npos) << text.error().message;
  EXPECT_NE(text.error().message.find(chunks_[3].digest.ToHex()), std::string::npos);
  EXPECT_EQ(store_->Stats().corrupt_chunks_total, 1u);
  ExpectReads(chunks_[4]);
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_NE(Problems()[0].find("do not match the digest"), std::string::npos) << Problems()[0];
  // A collection leaves the damaged segment alone and goes on.
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [&](const Digest& d) { return d != chunks_[4].digest && d != chunks_[5].digest; }, SweepOptions(), progress));
  ExpectReads(chunks_[6]);
}

TEST_F(DamageTest, WhatIsReadFromTheDiskIsNotTakenFromMemory) {
  Fill();
  const auto code_from_disk = [&](const TestChunk& chunk) {
    std::promise<std::optional<ErrorCode>> code;
    store_->GetFromDisk(chunk.digest, [&](Result<ChunkData> data) {
      code.set_value(data.ok() ? std::nullopt : std::optional(data.error().code));
    });
    return code.get_future().get();
  };
  ExpectReads(chunks_[3]);
  EXPECT_EQ(code_from_disk(chunks_[3]), std::nullopt);
  Flip(chunks_[3]);
  ExpectReads(chunks_[3]);
  EXPECT_EQ(code_from_disk(chunks_[3]), ErrorCode::kCorrupt);
  EXPECT_EQ(code_from_disk(MakeChunk(1000, 5000)), ErrorCode::kNotFound);
}

// It may be the only sound copy: the entry of the damaged one must not outlive it.
TEST_F(DamageTest, WhatIsStoredAnewWithTheEngineOutlivesACrash) {
  Open();
  const TestChunk chunk = MakeChunk(1, 10'000);
  Put(chunk);
  ASSERT_OK(store_->Sync());
  Open();
  Flip(chunk);
  EXPECT_EQ(ReadCode(chunk), ErrorCode::kCorrupt);
  Put(chunk);
  ASSERT_OK(store_->SyncWithEngine());
  store_.reset();
  memory_.Crash(1);
  Open();
  ExpectReads(chunk);
}

TEST_F(DamageTest, DamagedRecordHeaderIsReportedAndHarmless) {
  Fill();
  ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunks_[3]), (Find(chunks_[3]).offset + 10) * 8));
  ExpectReads(chunks_[3]);
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_NE(Problems()[0].find("header is damaged"), std::string::npos) << Problems()[0];
}

TEST_F(DamageTest, CutSegment) {
  Fill();
  std::string name = SegmentOf(chunks_[3]);
  {
    auto file = disk_.Open(name);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Truncate(8192));
  }
  EXPECT_EQ(GetText(*store_, chunks_[3].digest).error().code, ErrorCode::kCorrupt);
  EXPECT_GE(Problems().size(), 1u);
  Open();
  auto text = GetText(*store_, chunks_[3].digest);
  EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(text.error().message.find("ends before"), std::string::npos) << text.error().message;
  ExpectReads(chunks_[29]);
}

TEST_F(DamageTest, MissingSegment) {
  Fill();
  std::string name = SegmentOf(chunks_[3]);
  store_.reset();
  ASSERT_OK(disk_.Remove(name));
  Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("cairnfs check"), std::string::npos) << error.message;
  ASSERT_OK(LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_));
  Open();
  ExpectReads(chunks_[29]);
  EXPECT_EQ(GetText(*store_, chunks_[3].digest).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(DamageTest, ASegmentThatIsTakenAwayWhileItIsOpenIsToldOf) {
  Fill();
  ExpectReads(chunks_[3]);
  const std::string name = SegmentOf(chunks_[3]);
  ASSERT_OK(memory_.Rename(name, "aside"));
  const std::vector<std::string> problems = Problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find(name + " was removed or renamed"), std::string::npos) << problems[0];
  ExpectReads(chunks_[3]);
  ASSERT_OK(memory_.Rename("aside", name));
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// A bit in the magic, the id, the generation, the size, the checksum, the padding.
TEST_F(DamageTest, ADamagedSegmentHeaderCostsNoChunk) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  for (uint64_t at : {0, 17, 30, 41, 50, 3000}) {
    ASSERT_TRUE(memory_.FlipBit(name, at * 8));
    Open();
    for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
    ASSERT_EQ(Problems().size(), 1u) << at;
    EXPECT_TRUE(Problems()[0].starts_with(name)) << Problems()[0];
    const TestChunk after = MakeChunk(1000 + at, 40'000);
    Put(after);
    ASSERT_OK(store_->Sync());
    EXPECT_NE(SegmentOf(after), name);
    ASSERT_TRUE(memory_.FlipBit(name, at * 8));
  }
  Open();
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(DamageTest, ACollectionMovesTheChunksOfASegmentWithADamagedHeader) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  ASSERT_TRUE(memory_.FlipBit(name, 20 * 8));
  Open();
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [](const Digest&) { return true; }, SweepOptions(), progress));
  EXPECT_NE(SegmentOf(chunks_[3]), name);
  EXPECT_FALSE(memory_.Contents(name).has_value());
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(Problems(), std::vector<std::string>{});
    for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
    Open();
  }
}

// Beside a damaged header, damaged bytes cost the chunk that they are of, and no other.
TEST_F(DamageTest, ADamagedSegmentHeaderAndADamagedChunk) {
  Fill();
  ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunks_[3]), 30 * 8));
  Flip(chunks_[3]);
  Open();
  for (const TestChunk& chunk : chunks_) {
    if (chunk.digest != chunks_[3].digest) ExpectReads(chunk);
  }
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kCorrupt);
  EXPECT_EQ(Problems().size(), 2u);
}

// The segment that was open when the store went down: nothing cut it to its records.
TEST_F(DamageTest, ADamagedHeaderOfTheOpenSegment) {
  Open();
  for (uint64_t i = 0; i < 5; ++i) {
    chunks_.push_back(MakeChunk(i, 40'000));
    Put(chunks_.back());
  }
  ASSERT_OK(store_->Sync());
  const std::string name = SegmentOf(chunks_[0]);
  store_.reset();
  {
    auto file = disk_.Open(name);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Allocate(kMiB));
  }
  ASSERT_TRUE(memory_.FlipBit(name, 30 * 8));
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_TRUE(Problems()[0].starts_with(name)) << Problems()[0];
}

TEST_F(DamageTest, ADamagedHeaderOfASegmentThatTheIndexDoesNotName) {
  Fill();
  const std::string unnamed = MakeSegmentName(SegmentName::kSegment, SegmentId{77});
  {
    auto file = disk_.Create(unnamed);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Allocate(kMiB));
  }
  Open();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [](const Digest&) { return true; }, SweepOptions(), progress));
  EXPECT_FALSE(memory_.Contents(unnamed).has_value());
  Open();
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(DamageTest, ACutSegmentThatTheIndexDoesNotNameIsNotMissed) {
  Fill();
  for (uint64_t size : {0, 100}) {
    const std::string unnamed = MakeSegmentName(SegmentName::kSegment, SegmentId{77 + size});
    {
      auto file = disk_.Create(unnamed);
      ASSERT_OK(file);
      ASSERT_OK((*file)->Truncate(size));
    }
    Open();
    EXPECT_FALSE(memory_.Contents(unnamed).has_value());
    for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
    EXPECT_EQ(Problems(), std::vector<std::string>{});
  }
}

TEST_F(DamageTest, AnEmptySegmentIsRefused) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  store_.reset();
  {
    auto file = disk_.Open(name);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Truncate(0));
  }
  Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
  ASSERT_OK(LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_));
  Open();
  ExpectReads(chunks_[29]);
  EXPECT_TRUE(memory_.Contents("damaged-" + name).has_value());
}

TEST_F(DamageTest, CheckGoesOnWithoutAMissingAndAnEmptySegment) {
  Fill();
  const std::string missing = SegmentOf(chunks_[3]), empty = SegmentOf(chunks_[29]);
  ASSERT_NE(missing, empty);
  store_.reset();
  ASSERT_OK(disk_.Remove(missing));
  {
    auto file = disk_.Open(empty);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Truncate(0));
  }
  StoreOptions options = SmallOptions();
  options.tolerate_damage = true;
  Open(options);
  std::vector<std::string> problems = Problems();
  ASSERT_EQ(problems.size(), 2u);
  for (const std::string& name : {missing, empty}) {
    auto names_it = [&](const std::string& problem) { return problem.starts_with(name); };
    EXPECT_EQ(std::count_if(problems.begin(), problems.end(), names_it), 1) << name;
  }
  std::vector<Digest> digests{chunks_[3].digest, chunks_[29].digest};
  EXPECT_EQ(store_->Has(digests), (std::vector<bool>{false, false}));
  EXPECT_EQ(GetText(*store_, chunks_[3].digest).error().code, ErrorCode::kCorrupt);
}

TEST_F(DamageTest, SegmentOfAnotherGeneration) {
  Fill();
  std::string name = SegmentOf(chunks_[3]);
  store_.reset();
  auto value = engine_->Get(SegmentKey(Find(chunks_[3]).segment));
  ASSERT_OK(engine_->Write({{SegmentKey(Find(chunks_[3]).segment), std::string(16, 'x')}}, kv::WriteMode::kSynced));
  Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("generation"), std::string::npos) << error.message;
}

TEST_F(DamageTest, BadIndexEntries) {
  Fill();
  ASSERT_OK(engine_->Write({{ChunkKey(chunks_[0].digest), "garbage"}}, kv::WriteMode::kSynced));
  EXPECT_EQ(GetText(*store_, chunks_[0].digest).error().code, ErrorCode::kCorrupt);
  ASSERT_OK(PutChunk(*store_, chunks_[0]));
  ExpectReads(chunks_[0]);
  Location wrong = Find(chunks_[1]);
  wrong.offset += 8;
  ASSERT_OK(engine_->Write({{ChunkKey(chunks_[1].digest), EncodeLocation(wrong)}}, kv::WriteMode::kSynced));
  EXPECT_EQ(GetText(*store_, chunks_[1].digest).error().code, ErrorCode::kCorrupt);
  wrong.segment = SegmentId{999};
  ASSERT_OK(engine_->Write({{ChunkKey(chunks_[1].digest), EncodeLocation(wrong)}}, kv::WriteMode::kSynced));
  auto text = GetText(*store_, chunks_[1].digest);
  EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), "garbage"}}, kv::WriteMode::kSynced));
  EXPECT_FALSE(OpenError().message.empty());
  EXPECT_NE(OpenError().code, ErrorCode::kFailed);
}

TEST_F(DamageTest, IndexIsRebuiltFromTheSegments) {
  Fill();
  // Some waste, some moved chunks, something unsynced.
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [&](const Digest& d) { return d != chunks_[1].digest && d != chunks_[2].digest; }, SweepOptions(), progress));
  Put(MakeChunk(500, 10'000));
  store_.reset();
  uint64_t before = 0;
  ASSERT_OK(engine_->Scan(kIndexBegin, kIndexEnd, nullptr, [&](std::string_view key, std::string_view) {
    before += ParseChunkKey(key).has_value();
    return true;
  }));
  engine_ = kv::OpenMemoryEngine();
  auto rebuilt = LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_);
  ASSERT_OK(rebuilt);
  EXPECT_GE(rebuilt->chunk_count, before);
  Open();
  for (size_t i = 3; i < chunks_.size(); ++i) ExpectReads(chunks_[i]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
  EXPECT_EQ(store_->Stats().chunk_count, rebuilt->chunk_count);
}

TEST_F(DamageTest, UnfinishedRebuildIsNoticed) {
  Fill();
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), std::string(kRebuildingValue)}}, kv::WriteMode::kSynced));
  Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("--rebuild-index"), std::string::npos) << error.message;
}

TEST_F(DamageTest, WrongCountersHealInASweep) {
  Fill();
  store_.reset();
  IndexCounters counters = *DecodeCounters(**engine_->Get(kCountersKey));
  counters.chunk_count += 7;
  counters.unique_bytes -= 100;
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), EncodeCounters(counters)}}, kv::WriteMode::kSynced));
  Open();
  EXPECT_EQ(Problems().size(), 1u);
  store_->BeginCollection();
  SweepProgress progress;
  ASSERT_OK(store_->Sweep(
      {}, [](const Digest&) { return true; }, SweepOptions(), progress));
  EXPECT_EQ(store_->Stats().chunk_count, chunks_.size());
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(DamageTest, FailedWriteClosesTheStoreForWriting) {
  Fill();
  Put(MakeChunk(900, 100'000));
  io::Faults faults;
  faults.failing_write = 1;
  disk_.SetFaults(faults);
  Status status = store_->Sync();
  ASSERT_FALSE(status.ok());
  disk_.SetFaults(io::Faults());
  EXPECT_EQ(store_->Sync().error().code, ErrorCode::kFailed);
  EXPECT_EQ(PutChunk(*store_, MakeChunk(901, 10)).error().code, ErrorCode::kFailed);
  EXPECT_NE(store_->Stats().last_error.find("segment-"), std::string::npos) << store_->Stats().last_error;
  ExpectReads(chunks_[0]);
  Open();
  ExpectReads(chunks_[0]);
  Put(MakeChunk(901, 10));
  ASSERT_OK(store_->Sync());
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// Accepted bytes that the disk refuses are in memory still. They are no damage, wherever their windows end.
TEST_F(DamageTest, WhatAFailedWriteLeavesInMemoryIsRead) {
  StoreOptions options = SmallOptions();
  options.segment_bytes = 16 * kMiB;  // several windows of 4 MiB
  Open(options);
  Put(MakeChunk(900, 1000));
  ASSERT_OK(store_->Sync());
  const uint64_t written_before = store_->Stats().disk_write_bytes_total;
  io::Faults faults;
  faults.failing_write = 2;
  disk_.SetFaults(faults);
  for (uint64_t i = 0; i < 50; ++i) {
    chunks_.push_back(MakeChunk(i, 100'000));
    Put(chunks_.back());
  }
  ASSERT_TRUE(Eventually([&] { return store_->Stats().disk_write_bytes_total >= written_before + 4 * kMiB; }));
  EXPECT_FALSE(store_->Sync().ok());
  store_->DropCache();
  for (const TestChunk& chunk : chunks_) ExpectReads(chunk);
  EXPECT_EQ(store_->Stats().corrupt_chunks_total, 0u);
}

TEST_F(DamageTest, FailedSyncClosesTheStoreForWriting) {
  Fill();
  Put(MakeChunk(900, 100'000));
  ASSERT_OK(store_->Sync());
  Put(MakeChunk(902, 100'000));
  io::Faults faults;
  faults.failing_sync = 1;
  disk_.SetFaults(faults);
  Status status = store_->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kIo);
  disk_.SetFaults(io::Faults());
  EXPECT_EQ(store_->Sync().error().code, ErrorCode::kFailed);
  Open();
  EXPECT_FALSE(store_->Pin(MakeChunk(902, 100'000).digest, 0).ok());
  ExpectReads(chunks_[7]);
}

TEST_F(DamageTest, ReadErrorsAreReported) {
  Fill();
  io::Faults faults;
  faults.read_error_share = 1;
  disk_.SetFaults(faults);
  EXPECT_EQ(GetText(*store_, chunks_[0].digest).error().code, ErrorCode::kIo);
  faults = io::Faults();
  faults.bit_flip_share = 1;
  disk_.SetFaults(faults);
  // The flipped bit may fall beside the chunk, into what is read along for alignment.
  int corrupt = 0;
  for (int i = 0; i < 40; ++i) {
    auto text = GetText(*store_, chunks_[0].digest);
    if (text.ok()) {
      EXPECT_TRUE(*text == chunks_[0].bytes);
      store_->DropCache();
    } else {
      EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
      ++corrupt;
    }
  }
  EXPECT_GT(corrupt, 10);
  disk_.SetFaults(io::Faults());
  ExpectReads(chunks_[0]);
}

}  // namespace
}  // namespace cairnfs::store
