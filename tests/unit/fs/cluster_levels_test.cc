// Levels of durability among several hosts: what a directory says of them, and what a file has.
#include "chunking/digest.h"
#include "cluster_fixture.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

using ClusterLevelsTest = ClusterTest;

TEST_F(ClusterLevelsTest, ADirectoryHasALevelOfItsOwn) {
  MakeHosts(2);
  constexpr auto kSet = meta::Namespace::XattrMode::kSet;
  constexpr const char* kLevel = "user.cairnfs.level";
  auto level_of = [](Host& asked, InodeId inode) {
    auto level =
        Host::Await<std::string>([&](Done<std::string> done) { asked.fs->attributes().GetXattr(inode, kLevel, done); });
    return level.ok() ? *level : level.error().message;
  };
  const InodeId scratch = host(0).MakeDirectory("scratch"), deep = host(0).MakeDirectory("deep", scratch);
  const InodeId kept = host(0).MakeDirectory("kept", deep);
  ASSERT_TRUE(host(0).fs->attributes().SetXattr({}, scratch, kLevel, "local", kSet).ok());
  ASSERT_TRUE(host(0).fs->attributes().SetXattr({}, kept, kLevel, "replicated", kSet).ok());
  EXPECT_EQ(host(0).fs->attributes().SetXattr({}, scratch, kLevel, "both", kSet).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(level_of(host(0), kRootInode), "replicated");
  EXPECT_EQ(level_of(host(0), deep), "local");
  EXPECT_EQ(level_of(host(0), kept), "replicated");
  EXPECT_TRUE(Eventually([&] { return level_of(host(1), deep) == "local"; }));

  // Copies cannot be made: that is no matter where none are asked for.
  host(0).chunks->syncs_fail = true;
  auto fast = host(0).Create("fast", deep), safe = host(0).Create("safe", kept);
  ASSERT_TRUE(host(0).Write(fast, 0, "bytes").ok());
  ASSERT_TRUE(host(0).Write(safe, 0, "bytes").ok());
  Status synced = host(0).Fsync(fast);
  EXPECT_TRUE(synced.ok()) << synced.error().message;
  EXPECT_GE(host(0).chunks->referenced_count(), 1u) << "their copies are waited for still";
  EXPECT_GE(host(0).chunks->local_syncs, 1u);
  EXPECT_FALSE(host(0).Fsync(safe).ok());
  EXPECT_EQ(host(1).Cat("fast", deep), "bytes");
  EXPECT_EQ(*host(0).Durability(fast.attr.inode), "local");
  EXPECT_EQ(*host(0).Durability(safe.attr.inode), "pending");
  host(0).chunks->syncs_fail = false;
  EXPECT_TRUE(host(0).Fsync(safe).ok());
  EXPECT_EQ(*host(0).Durability(safe.attr.inode), "replicated");
  ASSERT_TRUE(host(0).CloseFile(fast).ok());
  ASSERT_TRUE(host(0).CloseFile(safe).ok());

  EXPECT_EQ(host(0).fs->attributes().SetXattr({}, fast.attr.inode, kLevel, "local", kSet).error().code,
            ErrorCode::kNotDirectory);
  ASSERT_TRUE(host(0).fs->attributes().RemoveXattr({}, kept, kLevel).ok());
  EXPECT_EQ(host(0).fs->attributes().RemoveXattr({}, kept, kLevel).error().code, ErrorCode::kNoData);
  EXPECT_EQ(level_of(host(0), kept), "local");
  EXPECT_TRUE(host(0).fs->attributes().ListXattrs({}, scratch)->empty());
}

TEST_F(ClusterLevelsTest, ALevelCountsOnAllHostsOnceItsCallHasReturned) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("scratch");
  auto level_elsewhere = [&] {
    return *Host::Await<std::string>(
        [&](Done<std::string> done) { host(1).fs->attributes().GetXattr(directory, "user.cairnfs.level", done); });
  };
  for (const char* level : {"local", "replicated", "local"}) {
    level_elsewhere();  // so that the host knows the one before
    ASSERT_TRUE(host(0)
                    .fs->attributes()
                    .SetXattr({}, directory, "user.cairnfs.level", level, meta::Namespace::XattrMode::kSet)
                    .ok());
    ASSERT_TRUE(Host::Await<void>([&](Done<void> done) {
                  host(0).fs->attributes().WhenItCounts("user.cairnfs.level", {}, [done] { done({}); });
                }).ok());
    EXPECT_EQ(level_elsewhere(), level);
  }
}

// Every host reads all levels again and again: none may stay behind, whoever knew of it.
TEST_F(ClusterLevelsTest, ALevelGoesWithItsDirectory) {
  MakeHosts(2);
  const InodeId removed = host(0).MakeDirectory("removed"), replaced = host(0).MakeDirectory("replaced");
  for (InodeId directory : {removed, replaced}) {
    ASSERT_TRUE(host(0)
                    .fs->attributes()
                    .SetXattr({}, directory, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                    .ok());
  }
  EXPECT_EQ(KeyCount("Y"), 2u);
  ASSERT_TRUE(host(1).fs->names().Rmdir({}, kRootInode, "removed").ok());
  host(1).MakeDirectory("empty");
  ASSERT_TRUE(host(1).Rename(kRootInode, "empty", kRootInode, "replaced").ok());
  for (InodeId directory : {removed, replaced}) host(0).fs->names().Forget(directory, 1);
  EXPECT_TRUE(Eventually([&] { return KeyCount("Y") == 0; }));
  for (InodeId directory : {removed, replaced}) EXPECT_FALSE(HasKey(meta::OrphanKey(directory)));
}

TEST_F(ClusterLevelsTest, NothingIsReplicatedWhileCopiesAreMissing) {
  MakeHosts(1);
  const InodeId directory = host(0).MakeDirectory("directory");
  const InodeId file = host(0).PutKilled("file", "bytes", directory);
  EXPECT_EQ(*host(0).Durability(file), "pending");
  host(0).lacks_copies = true;
  EXPECT_EQ(*host(0).Durability(file), "pending");
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(*host(0).Durability(file), "local");
  EXPECT_EQ(*host(0).Durability(directory), "local");
  host(0).lacks_copies = false;
  EXPECT_EQ(*host(0).Durability(file), "replicated");
  EXPECT_EQ(*host(0).Durability(directory), "replicated");
}

TEST_F(ClusterLevelsTest, WhatMovesToWhereCopiesArePromisedHasThem) {
  MakeHosts(2);
  const InodeId scratch = host(0).MakeDirectory("scratch"), below = host(0).MakeDirectory("below", scratch);
  ASSERT_TRUE(host(0)
                  .fs->attributes()
                  .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                  .ok());
  host(0).chunks->syncs_fail = true;
  auto file = host(0).Create("file", scratch), deep = host(0).Create("deep", below);
  for (const auto& each : {file, deep}) {
    ASSERT_TRUE(host(0).Write(each, 0, TextOf(1, 50'000)).ok());
    Status synced = host(0).Fsync(each);
    ASSERT_TRUE(synced.ok()) << synced.error().message;
    EXPECT_EQ(*host(0).Durability(each.attr.inode), "local");
  }
  EXPECT_TRUE(host(0).Rename(scratch, "file", below, "file").ok()) << "no copies are promised there either";
  EXPECT_FALSE(host(0).Rename(below, "file", kRootInode, "file").ok());
  EXPECT_FALSE(host(0).Rename(scratch, "below", kRootInode, "final").ok());
  host(0).chunks->syncs_fail = false;
  const uint64_t syncs = host(0).chunks->syncs;
  EXPECT_TRUE(host(0).Rename(below, "file", kRootInode, "file").ok());
  EXPECT_GT(host(0).chunks->syncs, syncs);
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "replicated");
  EXPECT_EQ(*host(0).Durability(deep.attr.inode), "local");
  EXPECT_TRUE(host(0).Rename(scratch, "below", kRootInode, "final").ok());
  EXPECT_EQ(*host(0).Durability(deep.attr.inode), "replicated");
  // Published before its directory had another level: as it was then.
  auto old = host(0).Create("old", scratch);
  ASSERT_TRUE(host(0).Write(old, 0, "bytes").ok());
  ASSERT_TRUE(host(0).Fsync(old).ok());
  ASSERT_TRUE(host(0).fs->attributes().RemoveXattr({}, scratch, "user.cairnfs.level").ok());
  EXPECT_EQ(*host(0).Durability(old.attr.inode), "local");
  for (const auto& each : {file, deep, old}) ASSERT_TRUE(host(0).CloseFile(each).ok());
}

// What a host knows of its own puts does not count: others have put it, or an earlier process of its own.
TEST_F(ClusterLevelsTest, WhatAnotherHostHasPutMovesWithItsCopies) {
  MakeHosts(2);
  const InodeId scratch = host(0).MakeDirectory("scratch"), below = host(0).MakeDirectory("below", scratch);
  const InodeId deep = host(0).MakeDirectory("deep", below);
  ASSERT_TRUE(host(0)
                  .fs->attributes()
                  .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                  .ok());
  auto small = host(0).Create("small", scratch), large = host(0).Create("large", deep);
  ASSERT_TRUE(host(0).Write(small, 0, TextOf(1, 50'000)).ok());
  // Of so many chunks that the record names pages, which name the chunks.
  constexpr uint64_t kPieces = 24, kPiece = 50'000;
  for (uint64_t i = 0; i < kPieces; i++) {
    ASSERT_TRUE(host(0).Write(large, i * kPiece, TextOf(2 + i, kPiece)).ok());
  }
  for (const auto& each : {small, large}) {
    ASSERT_TRUE(host(0).Fsync(each).ok());
    ASSERT_TRUE(host(0).CloseFile(each).ok());
  }
  Host& mover = host(1);
  EXPECT_TRUE(Eventually([&] { return *mover.Durability(small.attr.inode) == "local"; }));  // it knows of the level
  mover.chunks->syncs_fail = true;
  EXPECT_FALSE(mover.Rename(scratch, "small", kRootInode, "small").ok());
  EXPECT_FALSE(mover.Rename(scratch, "below", kRootInode, "final").ok());
  EXPECT_TRUE(mover.Rename(scratch, "small", deep, "small").ok()) << "no copies are promised there either";
  EXPECT_TRUE(mover.Rename(deep, "small", scratch, "small").ok());
  mover.chunks->syncs_fail = false;
  EXPECT_TRUE(mover.Rename(scratch, "small", kRootInode, "small").ok());
  EXPECT_TRUE(mover.Rename(scratch, "below", kRootInode, "final").ok());
  // Each chunk is 32 KiB at most; and two pages.
  EXPECT_GE(mover.chunks->copied_count(), (kPieces + 1) * kPiece / 32'768 + 2);
  EXPECT_EQ(mover.Cat("small"), TextOf(1, 50'000));

  // What is known to have its copies waits for nothing.
  ASSERT_TRUE(mover.Rename(kRootInode, "final", scratch, "below").ok());
  mover.chunks->syncs_fail = true;
  EXPECT_TRUE(mover.Rename(scratch, "below", kRootInode, "final").ok());
}

TEST_F(ClusterLevelsTest, AMoveThatCannotHaveItsCopiesSaysWhichFileAndWhy) {
  MakeHosts(2);
  const InodeId scratch = host(0).MakeDirectory("scratch"), below = host(0).MakeDirectory("below", scratch);
  ASSERT_TRUE(host(0)
                  .fs->attributes()
                  .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                  .ok());
  auto file = host(0).Create("file", below);
  const std::string text = TextOf(1, 3000);  // one chunk
  ASSERT_TRUE(host(0).Write(file, 0, text).ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  Host& mover = host(1);
  EXPECT_TRUE(Eventually([&] { return *mover.Durability(file.attr.inode) == "local"; }));
  mover.chunks->SetUnreadable(chunking::ComputeDigest(AsBytes(text)));
  const Status moved = mover.Rename(scratch, "below", kRootInode, "final");
  ASSERT_FALSE(moved.ok());
  EXPECT_NE(moved.error().message.find("scratch/below/file"), std::string::npos) << moved.error().message;
  EXPECT_NE(moved.error().message.find("cannot be read back"), std::string::npos) << moved.error().message;
  mover.chunks->SetAllReadable();
  EXPECT_TRUE(mover.Rename(scratch, "below", kRootInode, "final").ok());
}

TEST_F(ClusterLevelsTest, ADirectoryWithALevelOfItsOwnTakesItAlong) {
  MakeHosts(1);
  const InodeId scratch = host(0).MakeDirectory("scratch"), own = host(0).MakeDirectory("own", scratch);
  for (InodeId directory : {scratch, own}) {
    ASSERT_TRUE(host(0)
                    .fs->attributes()
                    .SetXattr({}, directory, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                    .ok());
  }
  auto file = host(0).Create("file", own);
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  host(0).chunks->syncs_fail = true;
  EXPECT_TRUE(host(0).Rename(scratch, "own", kRootInode, "own").ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "local");
}

TEST_F(ClusterLevelsTest, ACopyToWhereCopiesArePromisedWaitsForThem) {
  MakeHosts(2);
  const InodeId scratch = host(0).MakeDirectory("scratch");
  ASSERT_TRUE(host(0)
                  .fs->attributes()
                  .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                  .ok());
  const std::string text = TextOf(1, 50'000);
  auto file = host(0).Create("file", scratch);
  ASSERT_TRUE(host(0).Write(file, 0, text).ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  Host& copier = host(1);
  EXPECT_TRUE(Eventually([&] { return *copier.Durability(file.attr.inode) == "local"; }));
  auto source = copier.OpenInode(file.attr.inode);
  ASSERT_TRUE(source.ok());
  auto copy_to = [&](const FileSystem::Created& to) {
    auto copied = Host::Await<size_t>([&](Done<size_t> done) {
      copier.fs->writer().CopyRange({*source, 0, to.handle, 0, text.size()}, std::move(done));
    });
    return copied.ok() ? *copied : 0;
  };
  auto rough = copier.Create("rough", scratch), final = copier.Create("final");
  EXPECT_EQ(copy_to(rough), text.size());
  EXPECT_EQ(copy_to(final), text.size());
  EXPECT_GE(copier.chunks->covered_count(), text.size() / 32'768);
  copier.chunks->syncs_fail = true;
  EXPECT_FALSE(copier.Fsync(final).ok());
  copier.chunks->syncs_fail = false;
  EXPECT_TRUE(copier.Fsync(final).ok());
  EXPECT_EQ(copier.chunks->covered_count(), 0u);
  EXPECT_EQ(copier.Cat("final"), text);
  copier.fs->open_files().Release(*source);
  for (const auto& each : {rough, final}) ASSERT_TRUE(copier.CloseFile(each).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterLevelsTest, ALinkToWhereCopiesArePromisedWaitsForThem) {
  MakeHosts(2);
  const InodeId scratch = host(0).MakeDirectory("scratch");
  ASSERT_TRUE(host(0)
                  .fs->attributes()
                  .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                  .ok());
  auto file = host(0).Create("file", scratch);
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  Host& linker = host(1);
  EXPECT_TRUE(Eventually([&] { return *linker.Durability(file.attr.inode) == "local"; }));
  linker.chunks->syncs_fail = true;
  EXPECT_TRUE(linker.Link(file.attr.inode, scratch, "beside").ok());
  EXPECT_FALSE(linker.Link(file.attr.inode, kRootInode, "final").ok());
  linker.chunks->syncs_fail = false;
  EXPECT_TRUE(linker.Link(file.attr.inode, kRootInode, "final").ok());
  EXPECT_EQ(linker.chunks->copied_count(), 1u);
}

}  // namespace
}  // namespace cairnfs::fs
