// `cairnfs wait` among several hosts: it waits for what others closed of a file, or below a directory.
#include "cluster_fixture.h"

namespace cairnfs::fs {
namespace {

class ClusterSyncBelowTest : public ClusterTest {
 protected:
  static Status SyncBelow(Host& host, InodeId inode, const Caller& caller = {}) {
    return host.fs->SyncBelow(inode, caller);
  }
  static void ExpectNamed(const Status& status, const std::string& what) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
  }
};

TEST_F(ClusterSyncBelowTest, WaitsForWhatOthersClosedBelow) {
  MakeHosts(4);
  const InodeId directory = host(0).MakeDirectory("step");
  const InodeId own = host(0).Put("elsewhere", "own");
  const InodeId one = host(1).Put("one", TextOf(1, 10'000), host(1).MakeDirectory("deep", directory));
  const InodeId two = host(2).Put("two", TextOf(2, 10'000), directory);
  const InodeId other = host(3).Put("other", "x");
  ASSERT_TRUE(SyncBelow(host(0), directory).ok());
  EXPECT_TRUE(HasKey(meta::FileKey(own))) << "this host's own, wherever it lies";
  EXPECT_TRUE(HasKey(meta::FileKey(one)));
  EXPECT_TRUE(HasKey(meta::FileKey(two)));
  EXPECT_FALSE(HasKey(meta::FileKey(other))) << "of another host, and not below";
  EXPECT_EQ(board_.finish_calls, 2);
  EXPECT_EQ(*host(0).Durability(directory), "replicated");
  ASSERT_TRUE(SyncBelow(host(1), other).ok()) << "of a file";
  EXPECT_TRUE(HasKey(meta::FileKey(other)));
}

TEST_F(ClusterSyncBelowTest, NamesWhatIsLost) {
  MakeHosts(3);
  const InodeId directory = host(0).MakeDirectory("step");
  host(1).Put("good", "good", directory);
  const InodeId bad = host(2).Put("bad", "bad", directory);
  host(2).Die();
  ExpectNamed(SyncBelow(host(0), directory), "'step/bad': host host3 ");
  // Who has seen that the host is down knows what was lost.
  ASSERT_TRUE(Eventually(
      [&] { return host(1).membership->view()->Find(host(2).membership->self())->state != cluster::NodeState::kUp; }));
  ExpectNamed(SyncBelow(host(1), bad), "'step/bad': host host3 was lost before its bytes were safe");
  EXPECT_TRUE(SyncBelow(host(1), host(1).MakeDirectory("beside")).ok());
  EXPECT_TRUE(host(0).fs->GetStatus().failed_commits.empty());
}

TEST_F(ClusterSyncBelowTest, NamesWhatAHostCannotStore) {
  options_.commit_wait_seconds_max = 2;
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step");
  host(1).Put("file", "bytes", directory);
  host(1).chunks->syncs_fail = true;
  ExpectNamed(SyncBelow(host(0), directory), "host2: too few nodes");
  host(1).chunks->syncs_fail = false;
  EXPECT_TRUE(SyncBelow(host(0), directory).ok());
}

TEST_F(ClusterSyncBelowTest, WhoIsGoneWaitsNoMore) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step");
  host(1).Put("file", "bytes", directory);
  board_.unanswered_finishes = 1'000'000;
  Caller caller;
  caller.cancelled = [this] { return board_.finish_calls > 0; };
  const Status waited = SyncBelow(host(0), directory, caller);
  board_.unanswered_finishes = 0;
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::kInterrupted) << waited.error().message;
}

TEST_F(ClusterSyncBelowTest, WhatIsNotThereIsAnError) {
  MakeHosts(1);
  const Status waited = SyncBelow(host(0), InodeId{1'000'000});
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::fs
