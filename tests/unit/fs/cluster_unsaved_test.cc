#include "cluster_waits_fixture.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

using ClusterUnsavedTest = ClusterWaitsTest;

Unsaved List(Host& host) {
  Unsaved unsaved;
  host.fs->maintenance().ListUnsaved({}, [&](const Unsaved& told) { unsaved = told; });
  return unsaved;
}

TEST_F(ClusterUnsavedTest, WhatLacksCopiesIsListedUntilItIsPublished) {
  MakeHosts(2);
  Host& writer = host(0);
  const InodeId step = writer.MakeDirectory("step.tmp");
  auto file = writer.Create("part", step);
  ASSERT_TRUE(writer.Fsync(file).ok());
  EXPECT_EQ(List(writer).bytes, 0u);
  ASSERT_TRUE(writer.Write(file, 0, TextOf(1, 50'000)).ok());
  writer.chunks->HangSyncs();
  std::promise<Status> synced;
  writer.fs->open_files().Fsync(file.handle, file.attr.inode, [&](const Status& status) { synced.set_value(status); });
  ASSERT_TRUE(Eventually([&] { return writer.chunks->hanging_syncs() > 0; }));
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1u);
  EXPECT_EQ(unsaved.files[0].path, "step.tmp/part");
  EXPECT_EQ(unsaved.files[0].bytes, 50'000u);
  EXPECT_FALSE(unsaved.has_names) << "names are durable once they are made";
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(synced.get_future().get().ok());
  EXPECT_EQ(List(writer).bytes, 0u);
  EXPECT_TRUE(writer.CloseFile(file).ok());
  EXPECT_TRUE(writer.Sync().ok());
  EXPECT_TRUE(List(writer).empty());
}

// It can never be published, and nothing is left that a sync would wait for.
TEST_F(ClusterUnsavedTest, WhatIsDroppedWithTheSessionIsListed) {
  MakeHosts(2);
  Host& writer = host(0);
  auto file = writer.Create("part");
  ASSERT_TRUE(writer.Write(file, 0, TextOf(1, 50'000)).ok());
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  LoseSession(0);
  ASSERT_TRUE(Eventually([&] { return List(writer).has_lost; }));
  EXPECT_TRUE(writer.Sync().ok());
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1u);
  EXPECT_EQ(unsaved.files[0].inode, file.attr.inode);
  EXPECT_EQ(unsaved.bytes, 50'000u);
}

}  // namespace
}  // namespace cairnfs::fs
