// Files that several hosts use: close-to-open, truncation, times, publishing.
#include "cluster_fixture.h"
#include "fs/names.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

using ClusterFilesTest = ClusterTest;

TEST_F(ClusterFilesTest, WhatWasClosedIsReadElsewhere) {
  MakeHosts(2);
  const std::string text = TextOf(1, 100'000);
  host(0).Put("file", text);
  EXPECT_EQ(host(1).Cat("file"), text);
}

TEST_F(ClusterFilesTest, SizeAndTimesAreSeenAtOnceAfterClose) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, TextOf(1, 5000)).ok());
  EXPECT_EQ(host(1).fs->names().Lookup({}, kRootInode, "file")->size, 0u) << "it is not closed yet";
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  auto here = host(0).fs->names().GetAttr({}, file.attr.inode);
  auto there = host(1).fs->names().GetAttr({}, file.attr.inode);
  ASSERT_TRUE(here.ok() && there.ok());
  EXPECT_EQ(there->size, 5000u);
  EXPECT_EQ(there->mtime, here->mtime);
}

TEST_F(ClusterFilesTest, PublishingTakesTheMarkAway) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  const InodeId inode = file.attr.inode;
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  EXPECT_EQ(KeyCount(meta::MarkPrefix(inode)), 1u);
  EXPECT_EQ(*host(1).Durability(inode), "pending");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(KeyCount(meta::MarkPrefix(inode)), 0u);
  EXPECT_EQ(*host(1).Durability(inode), "replicated");
  EXPECT_EQ(*host(0).Durability(inode), "replicated");
}

TEST_F(ClusterFilesTest, AReaderSeesWhatWasClosedSinceItOpenedTheFileLast) {
  MakeHosts(2);
  host(0).Put("file", "first");
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "first");
  auto writer = host(0).Open("file");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(host(0).Write(*writer, 0, "SECOND").ok());
  ASSERT_TRUE(host(0).CloseFile(*writer).ok());
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "first") << "open since before the close";
  EXPECT_EQ(host(1).Cat("file"), "SECOND");
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "SECOND");
  ASSERT_TRUE(host(1).CloseFile(*reader).ok());
}

TEST_F(ClusterFilesTest, FsyncPublishes) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "synced").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_EQ(host(0).chunks->syncs, 1u);
  EXPECT_EQ(host(1).Cat("file"), "synced");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterFilesTest, LocalLevelSyncsThisNodeAlone) {
  options_.durability = Durability::kLocal;
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "synced").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_EQ(host(0).chunks->syncs, 0u);
  EXPECT_EQ(host(0).chunks->local_syncs, 1u);
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "local");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterFilesTest, TruncationIsSeenWhenItReturned) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("file", std::string(10'000, 'x'));
  ASSERT_TRUE(host(1).Truncate(inode, 3000).ok());
  EXPECT_EQ(host(0).fs->names().GetAttr({}, inode)->size, 3000u);
  EXPECT_EQ(host(0).Cat("file"), std::string(3000, 'x'));
  ASSERT_TRUE(host(0).Truncate(inode, 6000).ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, inode)->size, 6000u);
  EXPECT_EQ(host(1).Cat("file"), std::string(3000, 'x') + std::string(3000, '\0'));
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterFilesTest, TruncationAtOpenReplacesWhatOthersWrote) {
  MakeHosts(2);
  host(0).Put("file", std::string(10'000, 'x'));
  auto file = host(1).Open("file", {.read = true, .write = true, .truncate = true});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(host(0).fs->names().GetAttr({}, file->attr.inode)->size, 0u);
  ASSERT_TRUE(host(1).Write(*file, 0, "new").ok());
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("file"), "new");
}

TEST_F(ClusterFilesTest, AWriterSeesThatTheFileWasTruncatedElsewhere) {
  MakeHosts(2);
  host(0).Put("file", std::string(10'000, 'x'));
  auto writer = host(0).Open("file");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(host(1).Truncate(writer->attr.inode, 100).ok());
  ASSERT_TRUE(host(0).Write(*writer, 200, "tail").ok());
  ASSERT_TRUE(host(0).CloseFile(*writer).ok());
  const std::string expected = std::string(100, 'x') + std::string(100, '\0') + "tail";
  EXPECT_EQ(host(1).Cat("file"), expected);
  EXPECT_EQ(host(0).Cat("file"), expected);
}

TEST_F(ClusterFilesTest, HolesPunchedHereStayHoles) {
  MakeHosts(2);
  host(0).Put("file", std::string(30'000, 'x'));
  auto file = host(1).Open("file");
  ASSERT_TRUE(file.ok());
  FallocateRequest request{.offset = 10'000, .length = 5000, .keep_size = true, .punch_hole = true};
  ASSERT_TRUE(
      Host::Await<void>([&](Done<void> done) { host(1).fs->writer().Fallocate(file->handle, request, done); }).ok());
  auto other = host(0).Open("file");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(0).Write(*other, 0, "first").ok());
  ASSERT_TRUE(host(0).Fsync(*other).ok());
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
  ASSERT_TRUE(host(0).CloseFile(*other).ok());
  std::string expected(30'000, 'x');
  expected.replace(10'000, 5000, std::string(5000, '\0')).replace(0, 5, "first");
  EXPECT_EQ(host(0).Cat("file"), expected);
}

TEST_F(ClusterFilesTest, TimesThatAreSetAreSeenAndStay) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  SetAttrRequest request;
  request.mtime = Timestamp{1'000'000'000, 5};
  ASSERT_TRUE(host(0).SetAttr(file.attr.inode, request).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, file.attr.inode)->mtime, *request.mtime);
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(host(0).fs->names().GetAttr({}, file.attr.inode)->mtime, *request.mtime);
}

TEST_F(ClusterFilesTest, WhatFoundNoRoomAndWasRemovedIsWaitedForNoMore) {
  MakeHosts(2);
  const InodeId held = host(0).Put("held", TextOf(2, 1000));
  host(0).chunks->sync_error = ErrorCode::kNoSpace;
  auto open = host(1).Open("held", {.read = true});
  ASSERT_TRUE(open.ok());
  auto again = host(0).Open("held");
  ASSERT_TRUE(again.ok());
  host(0).chunks->syncs_fail = true;
  const InodeId removed = host(0).PutInVain("removed", TextOf(1, 1000));
  ASSERT_TRUE(host(0).Write(*again, 0, "of which nobody was told").ok());
  EXPECT_EQ(host(0).CloseFile(*again).error().code, ErrorCode::kNoSpace);
  for (const auto& [name, inode] : {std::pair("removed", removed), std::pair("held", held)}) {
    ASSERT_TRUE(host(0).Unlink(name).ok());
    host(0).fs->names().Forget(inode, 1);
  }
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(removed)); }));
  host(1).fs->NoteLocked(open->handle);
  EXPECT_EQ(*host(1).Read(*open, 0, 2000), TextOf(2, 1000)) << "the close of the others has failed";
  ASSERT_TRUE(host(1).CloseFile(*open).ok());
}

TEST_F(ClusterFilesTest, ChunksAreSyncedBeforeTheirRecordIsPublished) {
  MakeHosts(2);
  host(0).chunks->syncs_fail = true;
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  Status synced = host(0).Fsync(file);
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(HasKey(meta::FileKey(file.attr.inode)));
  host(0).chunks->syncs_fail = false;
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(HasKey(meta::FileKey(file.attr.inode)));
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
}

TEST_F(ClusterFilesTest, ManyFilesArePublishedInFewTransactions) {
  MakeHosts(1);
  constexpr int kFiles = 100;
  for (int i = 0; i < kFiles; i++) host(0).PutKilled("file" + std::to_string(i), TextOf(static_cast<uint64_t>(i), 100));
  const uint64_t before = host(0).gate->commits;
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_LE(host(0).gate->commits - before, 5u);
  EXPECT_EQ(KeyCount("P"), 0u);
  for (int i = 0; i < kFiles; i++) {
    EXPECT_EQ(host(0).Cat("file" + std::to_string(i)), TextOf(static_cast<uint64_t>(i), 100));
  }
}

TEST_F(ClusterFilesTest, ACloseWhileTheRoundPublishesIsOfTheNext) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "one").ok());
  std::future<Status> closed;
  // Between the record's making and its publication.
  host(0).chunks->before_sync = [&] {
    EXPECT_TRUE(host(0).Write(file, 3, "two").ok());
    closed = std::async(std::launch::async, [&] { return host(0).Flush(file); });
  };
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(closed.get().ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, file.attr.inode)->size, 6u);
  EXPECT_EQ(host(1).Cat("file"), "onetwo");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterFilesTest, ManyThatCloseAFileAtOnceAllSucceed) {
  MakeHosts(2);
  constexpr size_t kClosers = 32, kRounds = 10;
  host(0).Put("file", "");
  std::vector<FileSystem::Created> files;
  for (size_t i = 0; i < kClosers; i++) {
    auto file = host(0).Open("file");
    ASSERT_TRUE(file.ok());
    files.push_back(*file);
  }
  std::string expected;
  std::atomic<int> failed = 0;
  for (size_t round = 0; round < kRounds; round++) {
    for (size_t i = 0; i < kClosers; i++) {
      const std::string piece = TextOf(round * kClosers + i, 100);
      ASSERT_TRUE(host(0).Write(files[i], expected.size(), piece).ok());
      expected += piece;
    }
    std::vector<std::thread> closers;
    for (size_t i = 0; i < kClosers; i++) {
      closers.emplace_back([&, i] {
        if (!host(0).Flush(files[i]).ok()) failed++;
      });
    }
    for (std::thread& closer : closers) closer.join();
  }
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(host(1).fs->names().GetAttr({}, files[0].attr.inode)->size, expected.size());
  for (const auto& file : files) ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).Cat("file"), expected);
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterFilesTest, AFileThatCannotBePublishedHoldsUpNoOther) {
  MakeHosts(2);
  const InodeId directory = host(1).MakeDirectory("dir");
  host(0).Put("bad", "first", directory);
  EXPECT_EQ(host(1).Cat("bad", directory), "first");
  auto bad = host(1).Open("bad", {.read = true, .write = true}, directory);
  auto good = host(1).Create("good", directory);
  ASSERT_TRUE(bad.ok());
  ASSERT_TRUE(host(1).Write(*bad, 100, "bytes").ok());
  ASSERT_TRUE(host(1).Write(good, 0, "bytes").ok());
  // Another host publishes a record whose recipe cannot be read.
  const std::string key = meta::FileKey(bad->attr.inode);
  auto sound = store_->Get({}, key);
  ASSERT_TRUE(sound.ok() && *sound);
  auto record = meta::FileRecord::Decode((*sound)->value);
  ASSERT_TRUE(record.ok());
  record->recipe = "no recipe";
  kv::Transaction damage;
  damage.Put(key, record->Encode());
  ASSERT_TRUE(store_->Commit({}, damage).ok());

  ASSERT_FALSE(host(1).Fsync(*bad).ok());
  Status synced = host(1).Fsync(good);
  EXPECT_TRUE(synced.ok()) << synced.error().message;
  EXPECT_EQ(host(0).Cat("good", directory), "bytes");
  Status again = host(1).Fsync(*bad);
  ASSERT_FALSE(again.ok()) << "each time";
  EXPECT_NE(again.error().message.find("cannot be read"), std::string::npos) << again.error().message;
  EXPECT_FALSE(host(1).Sync().ok());
  ASSERT_FALSE(host(1).Flush(*bad).ok());
  for (unsigned i : {1, 0}) {
    Status renamed = host(i).Rename(kRootInode, "dir", kRootInode, "final");
    ASSERT_FALSE(renamed.ok());
    EXPECT_NE(renamed.error().message.find("host2"), std::string::npos) << renamed.error().message;
    EXPECT_NE(renamed.error().message.find("dir/bad"), std::string::npos) << renamed.error().message;
  }
  kv::Transaction mend;
  mend.Put(key, (*sound)->value);
  ASSERT_TRUE(store_->Commit({}, mend).ok());
  EXPECT_TRUE(host(1).Fsync(*bad).ok());
  ASSERT_TRUE(host(1).CloseFile(*bad).ok());
  ASSERT_TRUE(host(1).CloseFile(good).ok());
  EXPECT_TRUE(host(0).Rename(kRootInode, "dir", kRootInode, "final").ok());
  EXPECT_EQ(host(0).Cat("bad", directory), "first" + std::string(95, '\0') + "bytes");
}

TEST_F(ClusterFilesTest, AFileIsOpenBeforeItsNameIsSeen) {
  MakeHosts(2);
  host(0).Put("other", "");  // inode numbers are reserved
  host(0).gate->after_commit = [&] {
    ASSERT_TRUE(host(1).Unlink("file").ok());
    SettleOrphans(host(1));
    EXPECT_GE(board_.hold_calls, 1);
  };
  auto file = host(0).Create("file");
  EXPECT_TRUE(HasKey(meta::InodeKey(file.attr.inode)));
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_EQ(*host(0).Read(file, 0, 100), "bytes");
  EXPECT_TRUE(HasKey(meta::FileKey(file.attr.inode)));
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  host(0).fs->names().Forget(file.attr.inode, 1);
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(file.attr.inode)); }));
}

TEST_F(ClusterFilesTest, AHostThatHasJustJoinedIsAskedToo) {
  MakeHosts(2);
  host(0).fs->names().Forget(host(0).Put("file", "bytes"), 1);
  host(0).membership->FreezeView();
  Host& fresh = AddHost(3);
  auto file = fresh.Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(host(0).Unlink("file").ok());
  SettleOrphans(host(0));
  EXPECT_GE(board_.hold_calls, 2);
  EXPECT_TRUE(HasKey(meta::InodeKey(file->attr.inode)));
  EXPECT_EQ(*fresh.Read(*file, 0, 100), "bytes");
  ASSERT_TRUE(fresh.CloseFile(*file).ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(file->attr.inode)); }));
}

}  // namespace
}  // namespace cairnfs::fs
