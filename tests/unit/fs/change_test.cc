// Options that change while files are in use.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

Status Change(World& world, const FsOptions& options) {
  return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Change(options, std::move(done)); });
}

void Remove(World& world, const FileSystem::Created& file, std::string_view name) {
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, name).ok());
  world.fs->names().Forget(file.attr.inode, 1);
}

TEST(Change, WhatBecomesReadOnlyIsDurable) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;
  world.Remake();
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, 300'000)).ok());
  world.CloseFile(file);
  FsOptions options = world.fs_options;
  options.read_only = true;
  world.engine->full = true;  // so what is refused is what was not durable yet
  EXPECT_EQ(Change(world, options).error().code, ErrorCode::kNoSpace);
  world.engine->full = false;
  ASSERT_TRUE(Change(world, options).ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().dirty_bytes, 0U);
}

TEST(Change, RoundsComeAsOftenAsIsSaidLast) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;
  world.Remake();
  FsOptions options = world.fs_options;
  options.flush_interval_ms = 10;
  for (int i = 0; i < 2; ++i) {
    auto file = world.Create("file" + std::to_string(i));
    ASSERT_TRUE(world.Write(file, 0, RandomText(i, 300'000)).ok());
    world.CloseFile(file);
    if (i == 0) {
      ASSERT_TRUE(Change(world, options).ok());
    }
    EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetStatus().dirty_bytes == 0; }));
  }
}

TEST(Change, ReadsLeaveTimesOfAccessOfAReadOnlyFilesystem) {
  World world;
  FsOptions options = world.fs_options;
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "text").ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  const Timestamp before = world.fs->names().GetAttr({}, file.attr.inode)->atime;
  options.read_only = true;
  options.update_atime = false;
  ASSERT_TRUE(Change(world, options).ok());
  Clock::SleepFor(std::chrono::seconds(1));
  ASSERT_TRUE(world.Read(file, 0, 4).ok());
  EXPECT_EQ(world.fs->names().GetAttr({}, file.attr.inode)->atime, before);
  ASSERT_TRUE(Change(world, world.fs_options).ok());
  ASSERT_TRUE(world.Read(file, 0, 4).ok());
  EXPECT_NE(world.fs->names().GetAttr({}, file.attr.inode)->atime, before);
  world.CloseFile(file);
}

// Of a collection that would take for ever at its rate.
TEST(Change, ReadOnlyEndsACollectionAndReadWriteLetsItBegin) {
  World world;
  world.fs_options.collect_bytes_per_second_max = 1;
  world.Remake();
  FsOptions options = world.fs_options;
  std::vector<FileSystem::Created> gone;
  for (int i = 0; i < 12; ++i) {
    auto kept = world.Create("kept" + std::to_string(i));
    ASSERT_TRUE(world.Write(kept, 0, RandomText(i, 200'000)).ok());
    ASSERT_TRUE(world.Fsync(kept).ok());
    world.CloseFile(kept);
    gone.push_back(world.Create("gone" + std::to_string(i)));
    ASSERT_TRUE(world.Write(gone.back(), 0, RandomText(100 + i, 900'000)).ok());
    ASSERT_TRUE(world.Fsync(gone.back()).ok());
    world.CloseFile(gone.back());
  }
  for (int i = 0; i < 12; ++i) Remove(world, gone[i], "gone" + std::to_string(i));
  auto collected = std::async(std::launch::async, [&] {
    return World::Await<CollectionStatus>(
        [&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(std::move(done)); });
  });
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetCollection().bytes_moved > 0; }));
  options.read_only = true;
  ASSERT_TRUE(Change(world, options).ok());
  EXPECT_FALSE(world.fs->maintenance().GetStatus().collecting);
  EXPECT_FALSE(collected.get().ok());
  auto refused = World::Await<CollectionStatus>(
      [&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(std::move(done)); });
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission);
  options.read_only = false;
  options.collect_bytes_per_second_max = 0;
  ASSERT_TRUE(Change(world, options).ok());
  auto again = World::Await<CollectionStatus>(
      [&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(std::move(done)); });
  EXPECT_TRUE(again.ok()) << again.error().message;
  EXPECT_LT(world.chunks->Stats().unique_bytes, 3'000'000U);
}

// Also what an earlier process left, and what was noted before.
TEST(Change, WhatWasFreedIsCollectedOnceItMayBe) {
  World world;
  world.fs_options.collect_after_bytes = 1000;
  world.fs_options.collect_delay_ms = 0;
  world.fs_options.read_only = true;
  world.Remake();
  FsOptions options = world.fs_options;
  options.read_only = false;
  auto gone = world.Create("gone");
  ASSERT_TRUE(world.Write(gone, 0, RandomText(1, 100'000)).ok());
  world.CloseFile(gone);
  auto kept = world.Create("kept");
  ASSERT_TRUE(world.Write(kept, 0, RandomText(2, 100'000)).ok());
  world.CloseFile(kept);
  Remove(world, gone, "gone");
  const uint64_t looks = world.fs->maintenance().GetCollection().vain_looks_total;
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetCollection().vain_looks_total > looks + 1; }));
  EXPECT_EQ(world.fs->maintenance().GetCollection().runs_total, 0U);
  world.Reopen();
  EXPECT_EQ(world.fs->maintenance().GetCollection().runs_total, 0U);
  ASSERT_TRUE(Change(world, options).ok());
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetCollection().runs_total > 0; }));
}

}  // namespace
}  // namespace cairnfs::fs
