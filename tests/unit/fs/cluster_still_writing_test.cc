// A commit above files that another host is still writing: what it does when that host has died, and nobody knows yet.
#include <future>

#include "cluster_fixture.h"

namespace cairnfs::fs {
namespace {

// The second host is writing "dir/file".
class ClusterStillWritingTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(2);
    const InodeId directory = host(0).MakeDirectory("dir");
    ASSERT_TRUE(host(1).Write(host(1).Create("file", directory), 0, "bytes").ok());
  }
  void LoseSecondHost() {
    const cluster::NodeId gone = host(1).membership->self();
    host(1).Die();
    ASSERT_TRUE(Eventually([&] { return host(0).membership->view()->Find(gone)->session == 0; }));
  }
  Status Commit() { return host(0).Rename(kRootInode, "dir", kRootInode, "final"); }
  static void ExpectLost(const Status& committed) {
    ASSERT_FALSE(committed.ok());
    const std::string& why = committed.error().message;
    EXPECT_NE(why.find("'dir/file': host host2: the host was lost"), std::string::npos) << why;
  }
};

TEST_F(ClusterStillWritingTest, WhoDoesNotAnswerIsWaitedForUntilItsSessionEnds) {
  host(1).FallSilent();
  auto commit = std::async(std::launch::async, [&] { return Commit(); });
  ASSERT_TRUE(Eventually([&] { return board_.hold_calls > 1; }));
  LoseSecondHost();
  ExpectLost(commit.get());
}

TEST_F(ClusterStillWritingTest, WhoKeepsItsSessionAliveLives) {
  host(1).FallSilent();
  EXPECT_TRUE(Commit().ok());
  EXPECT_GT(board_.hold_calls, 1);
}

TEST_F(ClusterStillWritingTest, WhoWritesElsewhereIsNotWaitedFor) {
  host(0).MakeDirectory("other");
  host(1).FallSilent();
  EXPECT_TRUE(host(0).Rename(kRootInode, "other", kRootInode, "other final").ok());
  EXPECT_EQ(board_.hold_calls, 0);
}

TEST_F(ClusterStillWritingTest, WhoDiesBesideTheCommitIsFoundOut) {
  host(0).gate->before_commit = [this] { LoseSecondHost(); };
  ExpectLost(Commit());
}

}  // namespace
}  // namespace cairnfs::fs
