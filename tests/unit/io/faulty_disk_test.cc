#include "io/faulty_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "io/memory_disk.h"
#include "scratch.h"

namespace cairnfs::io {
namespace {

class FaultyDiskTest : public testing::Test {
 protected:
  void SetUp() override { file_ = std::move(*disk_.Create("a")); }
  ErrorCode WriteCode(uint64_t offset, ByteSpan data) {
    auto status = file_->Write(offset, data);
    return status.ok() ? ErrorCode::kNoData : status.error().code;  // kNoData stands for success
  }

  MemoryDisk memory_;
  FaultyDisk disk_{memory_};
  std::unique_ptr<File> file_;
};

TEST_F(FaultyDiskTest, WithoutFaultsItPassesEverythingOn) {
  auto data = AlignedBytes::Random(kMiB, 1);
  ASSERT_TRUE(file_->Write(0, data).ok());
  ASSERT_TRUE(file_->DataSync().ok());
  ASSERT_TRUE(disk_.SyncDirectory().ok());
  AlignedBytes back(kMiB);
  EXPECT_EQ(*file_->Read(0, back), kMiB);
  EXPECT_TRUE(back.Text() == data.Text());
  EXPECT_TRUE(file_->direct());
  EXPECT_EQ(*disk_.List(), std::vector<std::string>{"a"});
  auto counts = disk_.GetCounts();
  EXPECT_EQ(counts.writes, 1u);
  EXPECT_EQ(counts.reads, 1u);
  EXPECT_EQ(counts.syncs, 2u);
  EXPECT_EQ(counts.faults, 0u);
}

TEST_F(FaultyDiskTest, NoSpaceAfterSoManyBytes) {
  AlignedBytes page(kPageBytes);
  disk_.SetFaults({.growth_bytes_max = 3 * kPageBytes});
  EXPECT_EQ(disk_.GetSpace()->free_bytes, 3 * kPageBytes);
  EXPECT_EQ(WriteCode(0, page), ErrorCode::kNoData);
  EXPECT_EQ(WriteCode(0, page), ErrorCode::kNoData);
  EXPECT_TRUE(file_->Allocate(3 * kPageBytes).ok());
  EXPECT_EQ(WriteCode(3 * kPageBytes, page), ErrorCode::kNoSpace);
  EXPECT_EQ(*file_->Size(), 3 * kPageBytes);
  EXPECT_EQ(file_->Allocate(4 * kPageBytes).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(file_->Truncate(4 * kPageBytes).error().code, ErrorCode::kNoSpace);
  ASSERT_TRUE(file_->Truncate(2 * kPageBytes).ok());
  EXPECT_EQ(WriteCode(2 * kPageBytes, page), ErrorCode::kNoData);
  EXPECT_EQ(WriteCode(3 * kPageBytes, page), ErrorCode::kNoSpace);
  ASSERT_TRUE(disk_.Remove("a").ok());
  EXPECT_EQ(disk_.GetSpace()->free_bytes, 3 * kPageBytes);
}

TEST_F(FaultyDiskTest, TheNthWriteFailsAndIsTorn) {
  AlignedBytes data(16 * kPageBytes, std::byte{'n'});
  disk_.SetFaults({.seed = 5, .failing_write = 2});
  EXPECT_EQ(WriteCode(0, data), ErrorCode::kNoData);
  EXPECT_EQ(WriteCode(16 * kPageBytes, data), ErrorCode::kIo);
  EXPECT_EQ(*file_->Size() % kPageBytes, 0u);
  EXPECT_LT(*file_->Size(), 32 * kPageBytes);
  EXPECT_EQ(WriteCode(16 * kPageBytes, data), ErrorCode::kNoData);
  EXPECT_EQ(disk_.GetCounts().faults, 1u);
}

TEST_F(FaultyDiskTest, AFailingSyncSyncsNothing) {
  bool lost = false;
  for (uint64_t seed = 0; seed < 20; seed++) {
    MemoryDisk memory;
    FaultyDisk disk(memory);
    auto file = std::move(*disk.Create("a"));
    ASSERT_TRUE(disk.SyncDirectory().ok());
    ASSERT_TRUE(file->Write(0, AlignedBytes(kPageBytes, std::byte{'n'})).ok());
    disk.SetFaults({.failing_sync = 1});
    EXPECT_EQ(file->DataSync().error().code, ErrorCode::kIo);
    memory.Crash(seed);
    lost = lost || memory.Contents("a") == std::string();
  }
  EXPECT_TRUE(lost);
}

TEST_F(FaultyDiskTest, SyncsOfTheDirectoryFail) {
  disk_.SetFaults({.failing_sync = 2});
  EXPECT_TRUE(disk_.SyncDirectory().ok());
  EXPECT_EQ(disk_.SyncDirectory().error().code, ErrorCode::kIo);
  EXPECT_TRUE(disk_.SyncDirectory().ok());
  disk_.SetFaults({.sync_error_share = 1});
  EXPECT_EQ(disk_.SyncDirectory().error().code, ErrorCode::kIo);
}

TEST_F(FaultyDiskTest, ReadsFailEndEarlyAndLie) {
  auto data = AlignedBytes::Random(16 * kPageBytes, 1);
  ASSERT_TRUE(file_->Write(0, data).ok());
  AlignedBytes back(16 * kPageBytes);

  disk_.SetFaults({.read_error_share = 1});
  EXPECT_EQ(file_->Read(0, back).error().code, ErrorCode::kIo);

  disk_.SetFaults({.short_read_share = 1});
  size_t size = *file_->Read(0, back);
  EXPECT_LT(size, 16 * kPageBytes);
  EXPECT_EQ(size % kPageBytes, 0u);

  disk_.SetFaults({.bit_flip_share = 1});
  EXPECT_EQ(*file_->Read(0, back), 16 * kPageBytes);
  size_t wrong_bits = 0;
  for (size_t i = 0; i < 16 * kPageBytes; i++) {
    wrong_bits += static_cast<size_t>(std::popcount(std::to_integer<unsigned>(back[i] ^ data[i])));
  }
  EXPECT_EQ(wrong_bits, 1u);

  disk_.SetFaults({});
  EXPECT_EQ(*file_->Read(0, back), 16 * kPageBytes);
  EXPECT_TRUE(back.Text() == data.Text());
}

TEST_F(FaultyDiskTest, BadSectorsFailTheReadsThatTouchThem) {
  ASSERT_TRUE(file_->Write(0, AlignedBytes(4 * kPageBytes, std::byte{'n'})).ok());
  AlignedBytes back(4 * kPageBytes);
  disk_.SetFaults({.bad_sectors = {{"a", kPageBytes, kPageBytes + 512}, {"other", 0, kPageBytes}}});
  EXPECT_EQ(file_->Read(0, back).error().code, ErrorCode::kIo);
  EXPECT_EQ(file_->Read(kPageBytes, MutableByteSpan(back).first(kPageBytes)).error().code, ErrorCode::kIo);
  EXPECT_TRUE(file_->Read(0, MutableByteSpan(back).first(kPageBytes)).ok());
  EXPECT_TRUE(file_->Read(2 * kPageBytes, MutableByteSpan(back).first(2 * kPageBytes)).ok());
}

TEST_F(FaultyDiskTest, TheSameSeedMakesTheSameFaults) {
  AlignedBytes page(kPageBytes);
  auto run = [&](uint64_t seed) {
    disk_.SetFaults({.seed = seed, .write_error_share = 0.3});
    std::string outcome;
    for (int i = 0; i < 100; i++) outcome += WriteCode(0, page) == ErrorCode::kIo ? 'x' : '.';
    return outcome;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  auto errors = std::ranges::count(run(3), 'x');
  EXPECT_GT(errors, 10);
  EXPECT_LT(errors, 60);
}

TEST_F(FaultyDiskTest, ASlowDiskIsSlow) {
  AlignedBytes page(kPageBytes);
  disk_.SetFaults({.delay_max = std::chrono::milliseconds(10)});
  auto begin = Clock::Now();
  for (int i = 0; i < 20; i++) EXPECT_EQ(WriteCode(0, page), ErrorCode::kNoData);
  EXPECT_GT(Clock::Now() - begin, std::chrono::milliseconds(20));
}

}  // namespace
}  // namespace cairnfs::io
