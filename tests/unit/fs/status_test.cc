// Status: right at any moment, and cheap.

#include "../../support/eventually.h"
#include "base/clock.h"
#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

TEST(Status, LogicalBytesAreRightBeforeWhileAndAfterARoundRuns) {
  World world;
  auto file = world.Create("a");
  const size_t size = 1'000'000;
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, size)).ok());
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(world.fs->maintenance().GetStatus().logical_bytes, size);
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(world.Fsync(file).ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, size);
  ASSERT_TRUE(world.Write(file, size, RandomText(2, 5'000)).ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, size + 5'000);
  ASSERT_TRUE(world.Truncate(file, 8192).ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, 8192u);
  world.CloseFile(file);
  world.Reopen();
  EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, 8192u);
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "a").ok());
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, 0u);
}

// What is written over or deleted is told apart from what files need, without a collection and to the byte.
TEST(Status, LiveAndDeadAreCountedApart) {
  World world;
  world.fs_options.collect_by_itself = false;
  world.Remake();
  auto count = [&] {
    auto counted =
        World::Await<LiveCount>([&](Done<LiveCount> done) { world.fs->maintenance().CountLive(std::move(done)); });
    EXPECT_TRUE(counted.ok());
    return counted.ok() ? counted->totals : store::LiveTotals();
  };
  EXPECT_FALSE(world.fs->maintenance().GetStatus().live.has_value());
  const std::string kept = RandomText(1, 100'000);
  for (const char* name : {"kept", "deleted"}) {
    auto file = world.Create(name);
    ASSERT_TRUE(world.Write(file, 0, name == std::string("kept") ? kept : RandomText(2, 50'000)).ok());
    ASSERT_TRUE(world.Fsync(file).ok());
    EXPECT_EQ(count().unreferenced_bytes, 0u);
    world.CloseFile(file);
  }
  store::LiveTotals before = count();
  EXPECT_EQ(before.live_bytes, 150'000u);
  // Synced again and again, a save leaves provisional tails behind, and adds nothing.
  auto again = world.Create("again");
  for (size_t at = 0; at < kept.size(); at += 10'000) {
    ASSERT_TRUE(world.Write(again, at, std::string_view(kept).substr(at, 10'000)).ok());
    ASSERT_TRUE(world.Fsync(again).ok());
  }
  world.CloseFile(again);
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  EXPECT_EQ(count().live_bytes, before.live_bytes);
  EXPECT_GT(count().unreferenced_bytes, 0u);
  auto attr = world.fs->names().Lookup({}, kRootInode, "deleted");
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "deleted").ok());
  world.fs->names().Forget(attr->inode, UINT32_MAX);
  for (int times = 0; times < 2; times++) {
    ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  }
  const store::LiveTotals now = count();
  EXPECT_EQ(now.live_bytes, 100'000u);
  const store::StoreStats stats = world.chunks->Stats();
  EXPECT_EQ(now.live_bytes + now.unreferenced_bytes, stats.unique_bytes);
  EXPECT_EQ(now.live_chunks + now.unreferenced_chunks, stats.chunk_count);
  EXPECT_EQ(world.fs->maintenance().GetStatus().live->totals.unreferenced_bytes, now.unreferenced_bytes);
  auto collected =
      World::Await<CollectionStatus>([&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(done); });
  ASSERT_TRUE(collected.ok());
  EXPECT_EQ(collected->bytes_freed, now.unreferenced_bytes);
  EXPECT_EQ(world.fs->maintenance().GetStatus().live->totals.live_bytes, 100'000u);
  EXPECT_EQ(world.fs->maintenance().GetStatus().live->totals.unreferenced_bytes, 0u);
}

TEST(Status, CountsInodesOfEveryType) {
  World world;
  world.CloseFile(world.Create("empty"));
  ASSERT_TRUE(world.fs->names().MakeNode({}, kRootInode, "directory", WithMode(S_IFDIR | 0755)).ok());
  world.Reopen();
  while (world.fs->maintenance().GetStatus().inode_count < 3) Clock::SleepFor(std::chrono::milliseconds(1));
  EXPECT_EQ(world.fs->maintenance().GetStatus().inode_count, 3u);  // the root is one
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "empty").ok());
  EXPECT_EQ(world.fs->maintenance().GetStatus().inode_count, 2u);
}

TEST(Status, CountsAgainWhatWasMadeAndRemovedMeanwhile) {
  World world;
  for (int i = 0; i < 3000; i++) world.CloseFile(world.Create("old" + std::to_string(i)));
  world.fs_options.flush_interval_ms = 5'000;  // or a minute would be more than a thousand rounds
  world.Reopen();
  for (int i = 0; i < 300; i++) {
    world.CloseFile(world.Create("new" + std::to_string(i)));
    ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "old" + std::to_string(2999 - 2 * i)).ok());
  }
  // A count that was disturbed is followed by a rest of fifty times as long.
  while (world.fs->maintenance().GetStatus().inode_count != 3001) Clock::SleepFor(std::chrono::minutes(1));
}

TEST(Status, ReadsNoRecordsOnceTheyAreCounted) {
  World world;
  for (int i = 0; i < 50; i++) world.CloseFile(world.Create("f" + std::to_string(i)));
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  static_cast<void>(world.fs->maintenance().GetStatus());
  EXPECT_TRUE(Eventually([&] {  // a start counts them for a while
    const uint64_t before = world.engine->scans_total;
    for (int i = 0; i < 100; i++) {
      static_cast<void>(world.fs->maintenance().GetStatus());
      static_cast<void>(world.fs->maintenance().GetTraffic());
    }
    return world.engine->scans_total == before;
  }));
}

// Records change while a start adds them up.
TEST(Status, RecordsThatChangeWhileTheyAreCountedCountOnce) {
  World world;
  for (int i = 0; i < 5000; i++) {
    auto file = world.Create("f" + std::to_string(i));
    ASSERT_TRUE(world.Write(file, 0, "four").ok());
    world.CloseFile(file);
  }
  for (int round = 0; round < 5; round++) {
    world.Reopen();
    for (int i = round; i < 5000; i += 500) {
      std::string name = "f" + std::to_string(i);
      if (round % 2 == 0) {
        auto file = world.OpenByName(name);
        ASSERT_TRUE(world.Write(file, 0, "eightbyt").ok());
        ASSERT_TRUE(world.Fsync(file).ok());
        world.CloseFile(file);
      } else {
        auto attr = world.fs->names().Lookup({}, kRootInode, name);
        ASSERT_TRUE(attr.ok());
        ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, name).ok());
        world.fs->names().Forget(attr->inode, 1);
        ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
      }
    }
    uint64_t now = world.fs->maintenance().GetStatus().logical_bytes;
    world.Reopen();
    EXPECT_EQ(world.fs->maintenance().GetStatus().logical_bytes, now) << round;
  }
}

}  // namespace
}  // namespace cairnfs::fs
