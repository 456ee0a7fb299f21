// What waits for chunks that other hosts have, for copies, or for a round of its own host: that it holds up nothing
// else, and what ends the wait. No call waits for another host to publish.
#include <future>
#include <vector>

#include "base/clock.h"
#include "chunking/digest.h"
#include "cluster_waits_fixture.h"
#include "fs/names.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

// A recipe of two leaves, of which opening the file needs the last, and reading its begin the first.
TEST_F(ClusterWaitsTest, OpeningAndReadingOutlastThatOthersAreAway) {
  MakeHosts(2);
  const std::string text = TextOf(1, kMiB);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, text).ok());
  ASSERT_TRUE(host(0).Write(file, kLeafBytes, TextOf(2, kMiB)).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  TestChunks& chunks = *host(1).chunks;
  // What a call gives that begins while they are away.
  auto outlast = [&](auto call) {
    chunks.OthersGo();
    auto result = std::async(std::launch::async, call);
    EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
    chunks.OthersComeBack();
    return result.get();
  };
  auto opened = outlast([&] { return host(1).Open("file", {.read = true}); });
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (int i = 0; i < 2; i++) {  // a page of the recipe is missing at first, then only bytes
    auto read = outlast([&] { return host(1).Read(*opened, 0, kMiB); });
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, text);
  }
  ASSERT_TRUE(host(1).CloseFile(*opened).ok());
}

TEST_F(ClusterWaitsTest, LinksThatWaitForCopiesHoldUpNothingElse) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  chunks.HangSyncs();
  ExpectStatBeside(
      host(1), [&](int i, Done<void> done) { Link(host(1), scratch.file, "link" + std::to_string(i), {}, done); },
      [&] { return chunks.hanging_syncs() >= 32; }, [&] { chunks.LetSyncsGo(); });
}

TEST_F(ClusterWaitsTest, AServerThatStopsAwaitsNoCopies) {
  options_.commit_wait_seconds_max = 3600;
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  chunks.HangSyncs();
  auto promise = std::make_shared<std::promise<Status>>();
  auto moved = promise->get_future();
  Move(host(1), scratch, {}, [promise](const Status& status) { promise->set_value(status); });
  EXPECT_TRUE(Eventually([&] { return chunks.hanging_syncs() > 0; }));
  host(1).fs->EndWaits();
  const bool is_over = IsReadyWithin(moved, std::chrono::seconds(60));
  chunks.LetSyncsGo();
  ASSERT_TRUE(is_over);
  const Status status = moved.get();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("stopping"), std::string::npos) << status.error().message;
}

TEST_F(ClusterWaitsTest, WhatWaitsForCopiesEndsWithItsTime) {
  AddHost(1);
  options_.commit_wait_seconds_max = 1;
  AddHost(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  chunks.HangSyncs();
  auto promise = std::make_shared<std::promise<Status>>();
  auto linked = promise->get_future();
  Link(host(1), scratch.file, "link", {}, [promise](const Status& status) { promise->set_value(status); });
  const bool is_over = IsReadyWithin(linked, std::chrono::seconds(60));
  chunks.LetSyncsGo();
  ASSERT_TRUE(is_over);
  const Status status = linked.get();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
}

TEST_F(ClusterWaitsTest, AReadThatWaitedGivesWhatTheFileIsThen) {
  MakeHosts(2);
  host(0).Put("file", TextOf(1, 5000));
  auto file = host(1).Open("file", {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  TestChunks& chunks = *host(1).chunks;
  chunks.OthersGo();
  auto read = std::async(std::launch::async, [&] { return host(1).Read(*file, 0, 5000); });
  EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
  EXPECT_TRUE(host(1).Write(*file, 0, TextOf(2, 5000)).ok());
  chunks.OthersComeBack();
  const auto text = read.get();
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, TextOf(2, 5000));
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
}

TEST_F(ClusterWaitsTest, ReadsThatWaitForOthersEnd) {
  MakeHosts(2);
  host(0).Put("file", TextOf(1, 5000));
  auto file = host(1).Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  TestChunks& chunks = *host(1).chunks;
  chunks.OthersGo();
  auto read = std::async(std::launch::async, [&] { return host(1).Read(*file, 0, 5000); });
  EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
  host(1).fs->EndWaits();
  const auto text = read.get();
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
}

// A chunk that left memory before it had its copies, and that the disk does not give back.
TEST_F(ClusterWaitsTest, AChunkThatCannotBeReadBackHoldsUpItsOwnFileAlone) {
  MakeHosts(2);
  const std::string text = TextOf(1, 1000);
  auto bad = host(0).Create("bad"), good = host(0).Create("good");
  host(0).chunks->SetUnreadable(chunking::ComputeDigest(AsBytes(text)));
  ASSERT_TRUE(host(0).Write(bad, 0, text).ok());
  ASSERT_TRUE(host(0).Write(good, 0, TextOf(2, 1000)).ok());
  EXPECT_FALSE(host(0).Flush(bad).ok());
  EXPECT_FALSE(host(0).Fsync(bad).ok());
  EXPECT_TRUE(host(0).Fsync(good).ok());
  EXPECT_EQ(host(1).Cat("good"), TextOf(2, 1000));
  EXPECT_TRUE(host(0).CloseFile(good).ok());
  EXPECT_TRUE(host(0).fs->names().Unlink({}, kRootInode, "good").ok());
  host(0).chunks->SetAllReadable();
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(bad).ok(); }));
  EXPECT_EQ(host(1).Cat("bad"), text);
  EXPECT_TRUE(host(0).CloseFile(bad).ok());
}

TEST_F(ClusterWaitsTest, ClosesThatWaitForARoundLeaveTheOthersAlone) {
  MakeHosts(2);
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < kCrowd; i++) files.push_back(host(0).Create("file-" + std::to_string(i)));
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  ExpectStatBeside(
      host(0),
      [&](int i, Done<void> done) {
        const FileSystem::Created& file = files[static_cast<size_t>(i)];
        EXPECT_TRUE(host(0).Write(file, 0, "x").ok());
        host(0).fs->open_files().Flush({file.handle}, std::move(done));
      },
      [&] { return chunks.hanging_syncs() > 0; }, [&] { chunks.LetSyncsGo(); });
  for (int i = 0; i < kCrowd; i++) EXPECT_EQ(host(1).Cat("file-" + std::to_string(i)), "x");
  for (const auto& file : files) host(0).fs->open_files().Release(file.handle);
}

TEST_F(ClusterWaitsTest, ChangesThatWaitForARoundLeaveTheOthersAlone) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "x").ok());
  host(0).chunks->HangSyncs();
  auto synced = std::async(std::launch::async, [&] { return host(0).Sync(); });
  EXPECT_TRUE(Eventually([&] { return host(0).chunks->hanging_syncs() > 0; }));  // the round has it
  // Each has its turn before the stat has: nothing is to be waited for.
  ExpectStatBeside(
      host(0), [&](int, Done<void> done) { SetTime(host(0), file.attr.inode, std::move(done)); }, [] { return true; },
      [&] { host(0).chunks->LetSyncsGo(); });
  EXPECT_TRUE(synced.get().ok());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterWaitsTest, CommitsThatWaitForARoundLeaveTheOthersAlone) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(1);
  std::vector<InodeId> parents;
  for (int i = 0; i < kCrowd; i++) {
    parents.push_back(host(0).MakeDirectory("parent-" + std::to_string(i)));
    host(0).Put("file", "x", host(0).MakeDirectory("tmp", parents.back()));
  }
  auto written = host(0).Create("written");
  ASSERT_TRUE(host(0).Write(written, 0, "x").ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  ExpectStatBeside(
      host(0),
      [&](int i, Done<void> done) {
        const InodeId parent = parents[static_cast<size_t>(i)];
        meta::RenameParams params{parent, "tmp", parent, "step", meta::RenameMode::kReplace};
        host(0).fs->names().Rename(params, {}, std::move(done));
      },
      [&] { return chunks.hanging_syncs() > 0; }, [&] { chunks.LetSyncsGo(); });
  EXPECT_TRUE(host(0).CloseFile(written).ok());
}

TEST_F(ClusterWaitsTest, NobodyWaitsForAHostThatCannotPublish) {
  MakeHosts(2);
  const InodeId tmp = host(1).MakeDirectory("tmp");
  const InodeId inode = host(1).Put("file", "old", tmp);
  auto file = host(1).Open("file", {.read = true, .write = true}, tmp);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(host(1).Write(*file, 0, "newer").ok());
  TestChunks& chunks = *host(1).chunks;
  chunks.HangSyncs();
  auto closed = std::async(std::launch::async, [&] { return host(1).Flush(*file); });
  EXPECT_TRUE(Eventually([&] { return chunks.hanging_syncs() > 0; }));
  EXPECT_EQ(host(0).Cat("file", tmp), "old");
  EXPECT_EQ(host(0).fs->names().GetAttr({}, inode)->size, 3u);
  EXPECT_EQ(*host(0).Durability(inode), "pending");
  EXPECT_TRUE(Host::Await<void>([&](Done<void> done) { SetTime(host(0), inode, std::move(done)); }).ok());
  EXPECT_TRUE(CommitTmp(host(0)).ok());
  EXPECT_EQ(closed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  chunks.LetSyncsGo();
  EXPECT_TRUE(closed.get().ok());
  EXPECT_EQ(host(0).Cat("file", tmp), "newer");
  EXPECT_EQ(*host(0).Durability(inode), "replicated");
  EXPECT_TRUE(host(1).CloseFile(*file).ok());
}

// It may never come, and who waits must not keep a server from stopping.
TEST_F(ClusterWaitsTest, NothingWaitsForTheAnswerToAMark) {
  MakeHosts(1);
  const InodeId inode = host(0).Put("file", "old");
  auto file = host(0).Open("file");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(host(0).Write(*file, 0, "newer").ok());
  host(0).gate->refuse = [](const kv::Transaction& transaction) -> std::optional<Error> {
    if (!transaction.operation_id.starts_with("mark/")) return std::nullopt;
    return Gate::Away();
  };
  EXPECT_FALSE(host(0).Flush(*file).ok());
  auto set = std::async(std::launch::async, [&] {
    return Host::Await<void>([&](Done<void> done) { SetTime(host(0), inode, std::move(done)); });
  });
  host(0).fs->EndWaits();
  EXPECT_EQ(set.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  host(0).gate->refuse = nullptr;
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(*file).ok(); }));
  static_cast<void>(set.get().ok());
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("file"), "newer");
}

TEST_F(ClusterWaitsTest, ACloseThatCannotReachTheStoreFailsAndItsBytesFollow) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).gate->shut = true;
  const Status closed = host(0).CloseFile(file);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code, ErrorCode::kUnavailable) << closed.error().message;
  EXPECT_EQ(host(1).Cat("file"), "");
  EXPECT_EQ(*host(1).Durability(file.attr.inode), "pending");
  host(0).gate->shut = false;
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(*host(1).Durability(file.attr.inode), "replicated");
}

// The view of the host that commits lags behind.
TEST_F(ClusterWaitsTest, AHostThatHasJustJoinedIsNotTakenForGone) {
  MakeHosts(2);
  const InodeId tmp = host(0).MakeDirectory("tmp");
  host(0).membership->FreezeView();
  Host& joined = AddHost(3);
  auto file = joined.Create("file", tmp);
  ASSERT_TRUE(joined.Write(file, 0, "bytes").ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "pending");
  EXPECT_TRUE(CommitTmp(host(0)).ok());
  EXPECT_TRUE(joined.CloseFile(file).ok());
  EXPECT_EQ(host(0).Cat("file", tmp), "bytes");
}

TEST_F(ClusterWaitsTest, ACommitFailsForBytesThatAreLostWhileItWaits) {
  MakeHosts(2);
  const InodeId tmp = host(0).MakeDirectory("tmp");
  auto own = host(0).Create("own", tmp), bad = host(1).Create("bad", tmp);
  ASSERT_TRUE(host(0).Write(own, 0, TextOf(1, 1000)).ok());
  ASSERT_TRUE(host(1).Write(bad, 0, TextOf(2, 1000)).ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  auto renamed = std::async(std::launch::async, [&] { return CommitTmp(host(0)); });
  EXPECT_TRUE(Eventually([&] { return chunks.hanging_syncs() > 0; }));
  LoseSession(1);
  chunks.LetSyncsGo();
  const Status status = renamed.get();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("host2"), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("tmp/bad"), std::string::npos) << status.error().message;
  EXPECT_FALSE(host(1).CloseFile(bad).ok());
  EXPECT_TRUE(host(0).CloseFile(own).ok());
}

}  // namespace
}  // namespace cairnfs::fs
