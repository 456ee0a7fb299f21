// A short disk: what is kept for reuse, and the reserve that is for metadata.
#include <algorithm>
#include <atomic>

#include "../../support/eventually.h"
#include "base/log.h"
#include "hooked_engine.h"
#include "store/segment.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

constexpr uint64_t kReserve = 4 * kMiB;
constexpr uint64_t kDiskBytes = 64 * kMiB;

class SpaceTest : public StoreTest {
 protected:
  SpaceTest() { spdlog::set_level(spdlog::level::warn); }
  ~SpaceTest() override { spdlog::set_level(spdlog::level::info); }

  void CreateFile(const std::string& name, uint64_t bytes) {
    auto file = small_.Create(name);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Allocate(bytes));
  }
  // Other files take the disk but for so much.
  void LeaveFree(uint64_t bytes) { CreateFile("others", small_.GetSpace()->free_bytes - bytes); }
  uint64_t FreeBytes() { return small_.GetSpace()->free_bytes; }
  size_t CountOf(const std::string& prefix) {
    const std::vector<std::string> names = *small_.List();
    return static_cast<size_t>(
        std::count_if(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); }));
  }

  io::MemoryDisk small_{io::MemoryDisk::Options{.size_bytes = kDiskBytes}};
  SpaceMeter meter_{small_, kReserve, kMiB, 64 * kKiB};
  SegmentSet set_{small_, meter_, [] {}};
};

TEST_F(SpaceTest, ARecycledSegmentGrowsOnlyByWhatTheReserveLeaves) {
  CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{7}), 256 * kKiB);
  set_.AddFree(SegmentId{7}, 256 * kKiB);
  set_.SetNextId(8);
  LeaveFree(kReserve + 128 * kKiB);
  auto segment = set_.Create({.size_bytes = kMiB, .size_bytes_min = 64 * kKiB, .reserve_bytes = kReserve});
  ASSERT_OK(segment);
  EXPECT_EQ((*segment)->header.size_bytes, 384 * kKiB);
  EXPECT_EQ(FreeBytes(), kReserve);
}

TEST_F(SpaceTest, WhatTheMetadataNeedsIsKeptBesideTheReserve) {
  uint64_t needed = 0;
  SpaceMeter meter(small_, kReserve, kMiB, 64 * kKiB, [&] { return kv::DiskUse{0, needed}; });
  LeaveFree(kReserve + 6 * kMiB);
  meter.Refresh();
  EXPECT_TRUE(meter.TryReserve(kMiB));
  EXPECT_EQ(meter.MetadataRoom(0), kReserve / 5 * 4 + 6 * kMiB + kReserve % 5);
  EXPECT_EQ(meter.MetadataRoom(kMiB), meter.MetadataRoom(0) - 2 * kMiB);  // for the log, and for tables
  EXPECT_EQ(meter.MetadataRoom(0, Leaves::kTenth), kReserve - kReserve / 10 + 6 * kMiB);
  EXPECT_EQ(meter.MetadataRoom(kReserve / 2 + 3 * kMiB), 0u);
  needed = 6 * kMiB;
  meter.Refresh();
  EXPECT_FALSE(meter.TryReserve(kMiB));
  EXPECT_GT(meter.MetadataRoom(0), 0u);
  needed += kReserve;
  meter.Refresh();
  EXPECT_EQ(meter.MetadataRoom(0), 0u);
}

TEST_F(StoreTest, AnEngineBesideCountsAsMetadataAndIsTidied) {
  Open();
  const uint64_t room = store_->MetadataRoom(0);
  const auto memory = kv::OpenMemoryEngine();
  HookedEngine beside(*memory);
  beside.use = {3 * kMiB, 2 * kMiB};
  StoreOptions options = SmallOptions();
  options.engine_beside = &beside;
  Open(options);
  EXPECT_EQ(store_->MetadataBytes(), 3 * kMiB);
  EXPECT_EQ(store_->MetadataRoom(0), room - 2 * kMiB);
  Put(MakeChunk(1, 10'000));  // the background thread makes the next segment ready
  EXPECT_TRUE(Eventually([&] { return beside.tidied > 0; }));
  store_.reset();
}

TEST_F(StoreTest, RoomIsKeptForTheLog) {
  Open();
  const uint64_t room = store_->MetadataRoom(0);
  StoreOptions options = SmallOptions();
  options.log_bytes_max = kMiB;
  Open(options);
  EXPECT_EQ(store_->MetadataRoom(0), room - kMiB);
}

// An error of the disk is told to a descriptor that was open when the bytes were on their way to it.
TEST_F(SpaceTest, AFileWithBytesThatAreNotSyncedStaysOpen) {
  std::vector<SegmentPtr> segments;
  for (size_t i = 0; i < kSegmentFilesOpenMax; ++i) {
    auto segment = set_.Create({.size_bytes = 64 * kKiB, .size_bytes_min = 64 * kKiB, .reserve_bytes = kReserve});
    ASSERT_OK(segment);
    (*segment)->sealed = true;
    (*segment)->unindexed = i % 4 == 0 ? 1 : 0;
    set_.Publish(*segment);
    segments.push_back(*segment);
  }
  set_.CloseFilesBeyondLimit();
  size_t open_count = 0;
  for (const SegmentPtr& segment : segments) {
    MutexLock lock(segment->file_mutex);
    open_count += segment->file ? 1 : 0;
    EXPECT_TRUE(segment->file || segment->unindexed == 0);
  }
  EXPECT_EQ(open_count, kSegmentFilesOpenMax / 2);
}

TEST_F(SpaceTest, ARecycledSegmentServesAsItIsBelowTheReserve) {
  CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{7}), 256 * kKiB);
  CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{6}), 8 * kKiB);
  set_.AddFree(SegmentId{7}, 256 * kKiB);
  set_.AddFree(SegmentId{6}, 8 * kKiB);  // too small to be of use: removed
  set_.SetNextId(8);
  LeaveFree(kReserve / 2);
  auto segment = set_.Create({.size_bytes = kMiB, .size_bytes_min = 64 * kKiB, .reserve_bytes = kReserve});
  ASSERT_OK(segment);
  EXPECT_EQ((*segment)->header.size_bytes, 256 * kKiB);
  EXPECT_EQ(FreeBytes(), kReserve / 2 + 8 * kKiB);
}

TEST_F(SpaceTest, FreeSegmentsAreGivenUpForTheReserve) {
  for (uint64_t id = 1; id <= 4; ++id) {
    CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{id}), kMiB);
    set_.AddFree(SegmentId{id}, kMiB);
  }
  EXPECT_FALSE(set_.GiveUpFree(kReserve));  // enough is free
  LeaveFree(kReserve - kMiB - 1);
  EXPECT_TRUE(set_.GiveUpFree(kReserve));
  EXPECT_EQ(CountOf("free-"), 2u);
  EXPECT_EQ(set_.GetTotals().free_bytes, 2 * kMiB);
  EXPECT_GE(FreeBytes(), kReserve);
}

TEST_F(SpaceTest, TheStoreGivesFreeSegmentsUpByItself) {
  StoreOptions options = SmallOptions();
  options.reserve_bytes = kReserve;
  auto store = LocalChunkStore::Open(small_, *engine_, *pool_, options);
  ASSERT_OK(store);
  for (uint64_t i = 0; i < 30; ++i) ASSERT_OK(PutChunk(**store, MakeChunk(i, 200'000)));
  auto collect = [&] {
    (*store)->BeginCollection();
    SweepProgress progress;
    ASSERT_OK((*store)->Sweep(
        {}, [](const Digest&) { return false; }, SweepOptions(), progress));
  };
  collect();
  EXPECT_GE(CountOf("free-"), 2u);
  LeaveFree(kReserve / 4);
  collect();
  EXPECT_EQ(CountOf("free-"), 0u);
}

TEST_F(SpaceTest, UnusedFilesGoBeforeAStoreIsOpened) {
  Open();
  TestChunk chunk = MakeChunk(1, 100'000);
  Put(chunk);
  ASSERT_OK(store_->Sync());
  store_.reset();
  for (const char* name : {"free-00000000000000aa", "new-00000000000000ab", "others"}) {
    ASSERT_OK(disk_.Create(name));
  }
  auto removed = LocalChunkStore::RemoveUnusedFiles(disk_);
  ASSERT_OK(removed);
  EXPECT_GE(*removed, 2u);
  EXPECT_FALSE(memory_.Contents("free-00000000000000aa").has_value());
  EXPECT_FALSE(memory_.Contents("new-00000000000000ab").has_value());
  EXPECT_TRUE(memory_.Contents("others").has_value());
  Open();
  ExpectReads(chunk);
}

// The engine shares the disk: what it finds no room for, it finds once the free segments are gone.
TEST_F(SpaceTest, ASyncGivesFreeSegmentsUpForTheIndex) {
  HookedEngine hooked(*engine_);
  auto store = LocalChunkStore::Open(small_, hooked, *pool_, SmallOptions());
  ASSERT_OK(store);
  for (uint64_t i = 0; i < 30; ++i) ASSERT_OK(PutChunk(**store, MakeChunk(i, 200'000)));
  (*store)->BeginCollection();
  SweepProgress progress;
  ASSERT_OK((*store)->Sweep(
      {}, [](const Digest&) { return false; }, SweepOptions(), progress));
  ASSERT_GE(CountOf("free-"), 2u);
  hooked.SetWriteHook([this]() -> Status {
    if (CountOf("free-") > 0) return MakeError(ErrorCode::kNoSpace, "no room");
    return {};
  });
  TestChunk chunk = MakeChunk(100, 50'000);
  ASSERT_OK(PutChunk(**store, chunk));
  ASSERT_OK((*store)->Sync());
  EXPECT_EQ((*store)->Stats().pending_bytes, 0u);
}

// --- no descriptors ------------------------------------------------------------------------------------------------

TEST_F(SpaceTest, ALackOfDescriptorsPasses) {
  Open();
  Put(MakeChunk(0, 1000));
  disk_.SetFaults({.opens_max = 0});
  auto put_next = [this, seed = uint64_t{1}]() mutable { return PutChunk(*store_, MakeChunk(seed++, 100'000)); };
  Status put;
  for (int i = 0; i < 100 && put.ok(); ++i) {
    auto result = put_next();
    if (!result.ok()) put = result.error();
  }
  ASSERT_FALSE(put.ok());
  EXPECT_EQ(put.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(put.error().message.find("descriptors"), std::string::npos) << put.error().message;
  ASSERT_OK(store_->Sync());
  disk_.SetFaults(io::Faults());
  ASSERT_OK(put_next());
  ASSERT_OK(store_->Sync());
  ExpectReads(MakeChunk(0, 1000));
}

// The first file that cannot be opened is the one being made, or the same under its last name.
TEST_F(SpaceTest, ALackOfDescriptorsLeavesNoFileBehind) {
  const SegmentSet::CreateOptions wanted{.size_bytes = kMiB, .size_bytes_min = 64 * kKiB, .reserve_bytes = kReserve};
  io::FaultyDisk faulty(small_);
  for (uint64_t opens_max : {0, 1}) {
    for (bool is_recycled : {false, true}) {
      SegmentSet set(faulty, meter_, [] {});
      if (is_recycled) {
        CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{7}), kMiB);
        set.AddFree(SegmentId{7}, kMiB);
      }
      set.SetNextId(8);
      faulty.SetFaults({.opens_max = opens_max});
      EXPECT_EQ(set.Create(wanted).error().code, ErrorCode::kExhausted);
      faulty.SetFaults(io::Faults());
      set.ProcessReleased(kMiB);
      EXPECT_EQ(CountOf("new-"), 0u);
      EXPECT_EQ(CountOf("segment-"), 0u);
      EXPECT_EQ(set.GetTotals().free_bytes, CountOf("free-") * kMiB);
      auto segment = set.Create(wanted);
      ASSERT_OK(segment);
      EXPECT_EQ(CountOf("free-"), 0u);
      set.Discard(*std::move(segment));
      set.ProcessReleased(0);
    }
  }
}

TEST_F(SpaceTest, ARecycledFileWhoseHeaderCannotBeWrittenIsNotLeftBehind) {
  io::FaultyDisk faulty(small_);
  SegmentSet set(faulty, meter_, [] {});
  CreateFile(MakeSegmentName(SegmentName::kFree, SegmentId{7}), kMiB);
  set.AddFree(SegmentId{7}, kMiB);
  set.SetNextId(8);
  faulty.SetFaults({.failing_write = 1});
  auto segment = set.Create({.size_bytes = kMiB, .size_bytes_min = 64 * kKiB, .reserve_bytes = kReserve});
  EXPECT_EQ(segment.error().code, ErrorCode::kIo);
  EXPECT_TRUE(small_.List()->empty());
}

TEST_F(SpaceTest, TheCacheSizeIsTold) {
  const size_t pool_bytes = pool_->count() * io::BufferPool::kBufferBytes;
  Open();
  EXPECT_EQ(store_->cache_bytes_max(), pool_bytes / 4 * 3);
  StoreOptions options = SmallOptions();
  options.cache_bytes_max = kTiB;
  Open(options);
  EXPECT_EQ(store_->cache_bytes_max(), pool_bytes);
}

}  // namespace
}  // namespace cairnfs::store
