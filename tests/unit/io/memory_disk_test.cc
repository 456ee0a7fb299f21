#include "io/memory_disk.h"

#include <gtest/gtest.h>

#include <set>

#include "scratch.h"

namespace cairnfs::io {
namespace {

AlignedBytes Page(char fill) { return AlignedBytes(kPageBytes, static_cast<std::byte>(fill)); }

// A file "a" whose name is durable, of one durable page of 'o'.
std::unique_ptr<File> SyncedFile(MemoryDisk& disk) {
  auto file = std::move(*disk.Create("a"));
  EXPECT_TRUE(file->Write(0, Page('o')).ok());
  EXPECT_TRUE(file->DataSync().ok());
  EXPECT_TRUE(disk.SyncDirectory().ok());
  return file;
}

TEST(MemoryDisk, BehavesAsADisk) {
  MemoryDisk disk;
  auto file = std::move(*disk.Create("a"));
  EXPECT_TRUE(file->direct());
  EXPECT_EQ(disk.Create("a").error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(disk.Open("b").error().code, ErrorCode::kNotFound);
  auto data = AlignedBytes::Random(300 * kKiB, 1);
  ASSERT_TRUE(file->Write(100 * kKiB, data).ok());
  EXPECT_EQ(*file->Size(), 400 * kKiB);
  AlignedBytes back(512 * kKiB, std::byte{1});
  EXPECT_EQ(*file->Read(0, back), 400 * kKiB);
  EXPECT_EQ(back.Text(0, 400 * kKiB), std::string(100 * kKiB, '\0') + data.Text());
  ASSERT_TRUE(file->Truncate(100 * kKiB + 5).ok());
  ASSERT_TRUE(file->Allocate(200 * kKiB).ok());
  EXPECT_EQ(disk.Contents("a"), std::string(100 * kKiB, '\0') + data.Text(0, 5) + std::string(100 * kKiB - 5, '\0'));
  ASSERT_TRUE(disk.Rename("a", "b").ok());
  EXPECT_EQ(*disk.List(), std::vector<std::string>{"b"});
  ASSERT_TRUE(disk.Remove("b").ok());
  EXPECT_EQ(disk.Contents("b"), std::nullopt);
  EXPECT_EQ(*file->Size(), 200 * kKiB);
}

TEST(MemoryDisk, IsFullAtItsSize) {
  MemoryDisk disk({.size_bytes = 4 * kPageBytes});
  auto first = std::move(*disk.Create("a"));
  auto second = std::move(*disk.Create("b"));
  ASSERT_TRUE(first->Allocate(3 * kPageBytes).ok());
  EXPECT_EQ(second->Write(kPageBytes, Page('x')).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(second->Allocate(UINT64_MAX).error().code, ErrorCode::kNoSpace);
  ASSERT_TRUE(second->Write(0, Page('x')).ok());
  EXPECT_EQ(disk.GetSpace()->free_bytes, 0u);
  ASSERT_TRUE(disk.Remove("a").ok());
  EXPECT_EQ(disk.GetSpace()->free_bytes, 3 * kPageBytes);
  EXPECT_TRUE(second->Write(3 * kPageBytes, Page('x')).ok());
}

TEST(MemoryDisk, SyncedStateSurvivesEveryCrash) {
  for (uint64_t seed = 0; seed < 50; seed++) {
    MemoryDisk disk;
    SyncedFile(disk);
    disk.Crash(seed);
    ASSERT_EQ(disk.Contents("a"), std::string(kPageBytes, 'o')) << seed;
  }
}

TEST(MemoryDisk, CrashesDropTearAndKeepUnsyncedWrites) {
  std::set<size_t> kept_sectors;
  for (uint64_t seed = 0; seed < 100; seed++) {
    MemoryDisk disk;
    auto file = SyncedFile(disk);
    ASSERT_TRUE(file->Write(0, Page('n')).ok());
    disk.Crash(seed);
    const std::string contents = disk.Contents("a").value();
    ASSERT_EQ(contents.size(), kPageBytes);
    size_t kept = 0;
    for (size_t at = 0; at < contents.size(); at += 512) {
      std::string sector = contents.substr(at, 512);
      ASSERT_TRUE(sector == std::string(512, 'n') || sector == std::string(512, 'o'));
      kept += sector[0] == 'n' ? 1 : 0;
    }
    kept_sectors.insert(kept);
  }
  EXPECT_TRUE(kept_sectors.contains(0));
  EXPECT_TRUE(kept_sectors.contains(8));
  EXPECT_GE(kept_sectors.size(), 4u);
}

TEST(MemoryDisk, CrashesLoseUnsyncedGrowth) {
  std::set<size_t> sizes;
  for (uint64_t seed = 0; seed < 100; seed++) {
    MemoryDisk disk;
    auto file = SyncedFile(disk);
    ASSERT_TRUE(file->Write(kPageBytes, Page('n')).ok());
    ASSERT_TRUE(file->Allocate(5 * kPageBytes).ok());
    disk.Crash(seed);
    const std::string contents = disk.Contents("a").value();
    sizes.insert(contents.size());
    for (size_t i = 0; i < contents.size(); i++) {
      ASSERT_TRUE(i < kPageBytes ? contents[i] == 'o' : contents[i] == 'n' || contents[i] == '\0');
    }
  }
  EXPECT_EQ(sizes, (std::set<size_t>{kPageBytes, 2 * kPageBytes, 5 * kPageBytes}));
}

TEST(MemoryDisk, NamesSurviveUpToSomePoint) {
  std::set<std::vector<std::string>> lists;
  for (uint64_t seed = 0; seed < 100; seed++) {
    MemoryDisk disk;
    SyncedFile(disk);
    ASSERT_TRUE(disk.Create("b").ok());
    ASSERT_TRUE(disk.Rename("a", "c").ok());
    ASSERT_TRUE(disk.Remove("b").ok());
    disk.Crash(seed);
    lists.insert(*disk.List());
  }
  EXPECT_EQ(lists, (std::set<std::vector<std::string>>{{"a"}, {"a", "b"}, {"b", "c"}, {"c"}}));
}

TEST(MemoryDisk, AnOpenFileFailsAfterACrash) {
  MemoryDisk disk;
  auto file = SyncedFile(disk);
  disk.Crash(1);
  EXPECT_EQ(file->Write(0, Page('x')).error().code, ErrorCode::kIo);
  EXPECT_EQ(file->DataSync().error().code, ErrorCode::kIo);
  EXPECT_EQ(file->Size().error().code, ErrorCode::kIo);
  auto again = std::move(*disk.Open("a"));
  EXPECT_TRUE(again->Write(0, Page('x')).ok());
}

TEST(MemoryDisk, TheSameSeedLeavesTheSameBytes) {
  auto after = [](uint64_t seed) {
    MemoryDisk disk;
    auto file = SyncedFile(disk);
    for (size_t i = 0; i < 10; i++) EXPECT_TRUE(file->Write(i * kPageBytes, Page('n')).ok());
    disk.Crash(seed);
    return disk.Contents("a");
  };
  for (uint64_t seed = 0; seed < 10; seed++) EXPECT_EQ(after(seed), after(seed));
}

TEST(MemoryDisk, FlipBit) {
  MemoryDisk disk;
  SyncedFile(disk);
  ASSERT_TRUE(disk.FlipBit("a", 8 * 100 + 1));
  EXPECT_FALSE(disk.FlipBit("a", 8 * kPageBytes));
  EXPECT_FALSE(disk.FlipBit("b", 0));
  std::string expected(kPageBytes, 'o');
  expected[100] ^= 2;
  EXPECT_EQ(disk.Contents("a"), expected);
  disk.Crash(3);
  EXPECT_EQ(disk.Contents("a"), expected);
}

}  // namespace
}  // namespace cairnfs::io
