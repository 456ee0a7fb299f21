// `cairnfs wait` among several hosts: it makes durable what this host was given, and names what others have lost or
// could not publish of a file, or below a directory.
#include "cluster_fixture.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

class ClusterSyncBelowTest : public ClusterTest {
 protected:
  static Status SyncBelow(Host& host, InodeId inode, const Caller& caller = {}) {
    return host.fs->maintenance().SyncBelow(inode, caller);
  }
  static void ExpectNamed(const Status& status, const std::string& what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
  }
};

TEST_F(ClusterSyncBelowTest, WaitsForWhatThisHostWroteAndForNoOther) {
  MakeHosts(3);
  const InodeId directory = host(0).MakeDirectory("step");
  auto own = host(0).Create("elsewhere"), other = host(2).Create("other", directory);
  ASSERT_TRUE(host(0).Write(own, 0, "own").ok());
  ASSERT_TRUE(host(2).Write(other, 0, "other").ok());
  host(1).Put("closed", TextOf(1, 10'000), host(1).MakeDirectory("deep", directory));
  ASSERT_TRUE(SyncBelow(host(0), directory).ok());
  EXPECT_TRUE(HasKey(meta::FileKey(own.attr.inode))) << "wherever it lies";
  EXPECT_FALSE(HasKey(meta::FileKey(other.attr.inode))) << "still being written by another host";
  EXPECT_EQ(*host(0).Durability(directory), "pending");
  ASSERT_TRUE(host(2).CloseFile(other).ok());
  ASSERT_TRUE(host(0).Write(own, 3, "more").ok());
  EXPECT_EQ(*host(0).Durability(directory), "replicated") << "whatever is being written elsewhere";
  EXPECT_EQ(*host(0).Durability(kRootInode), "pending");
  EXPECT_TRUE(SyncBelow(host(0), directory).ok());
  EXPECT_TRUE(SyncBelow(host(1), other.attr.inode).ok()) << "of a file";
  EXPECT_TRUE(host(0).CloseFile(own).ok());
}

TEST_F(ClusterSyncBelowTest, NamesWhatIsLost) {
  MakeHosts(3);
  const InodeId directory = host(0).MakeDirectory("step");
  host(1).Put("good", "good", directory);
  auto bad = host(2).Create("bad", directory);
  ASSERT_TRUE(host(2).Write(bad, 0, "bad").ok());
  const cluster::NodeId gone = host(2).membership->self();
  host(2).Die();
  for (size_t i = 0; i < 2; i++) {
    ASSERT_TRUE(Eventually([&] { return host(i).membership->view()->Find(gone)->state != cluster::NodeState::kUp; }));
  }
  ExpectNamed(SyncBelow(host(0), directory), "'step/bad': host host3: the host was lost before its bytes were safe");
  ExpectNamed(SyncBelow(host(1), bad.attr.inode),
              "'step/bad': host host3: the host was lost before its bytes were safe");
  EXPECT_TRUE(SyncBelow(host(1), host(1).MakeDirectory("beside")).ok());
  EXPECT_TRUE(host(0).fs->maintenance().GetRefusedCommits({}).empty());
}

TEST_F(ClusterSyncBelowTest, NamesWhatAHostCannotStore) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step");
  auto file = host(1).Create("file", directory);
  ASSERT_TRUE(host(1).Write(file, 0, "bytes").ok());
  host(1).chunks->syncs_fail = true;
  EXPECT_FALSE(host(1).CloseFile(file).ok());
  EXPECT_TRUE(Eventually([&] { return !SyncBelow(host(0), directory).ok(); }));  // the failure is told after the close
  ExpectNamed(SyncBelow(host(0), directory), "'step/file': host host2: too few nodes");
  EXPECT_FALSE(SyncBelow(host(1), directory).ok());
  host(1).chunks->syncs_fail = false;
  EXPECT_TRUE(SyncBelow(host(1), directory).ok());
  EXPECT_TRUE(SyncBelow(host(0), directory).ok());
}

TEST_F(ClusterSyncBelowTest, WhoIsGoneWaitsNoMore) {
  MakeHosts(1);
  const InodeId directory = host(0).MakeDirectory("step");
  auto file = host(0).Create("file", directory);
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  std::stop_source gone;
  Caller caller;
  caller.context = Context(gone.get_token());
  auto sync = std::async(std::launch::async, [&] { return SyncBelow(host(0), directory, caller); });
  EXPECT_TRUE(Eventually([&] { return chunks.hanging_syncs() > 0; }));
  gone.request_stop();
  const Status waited = sync.get();
  chunks.LetSyncsGo();
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::kInterrupted) << waited.error().message;
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterSyncBelowTest, WhatIsNotThereIsAnError) {
  MakeHosts(1);
  const Status waited = SyncBelow(host(0), InodeId{1'000'000});
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::fs
