// What removes or replaces something among several hosts, and what of its own host that comes after: bytes that count
// as closed. docs/cluster/publishing.md, "Order".
#include <future>

#include "cluster_fixture.h"
#include "fs/names.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

class ClusterRemovalsTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(2);
    host(0).Put("old", "old");
    host(0).Put("moved", "moved");
    file_ = host(0).Create("file");
  }
  void TearDown() override {
    host(0).chunks->lacks_nodes = false;
    host(0).chunks->LetSyncsGo();
    EXPECT_TRUE(host(0).Sync().ok());
    EXPECT_EQ(host(1).Cat("file"), "bytes");
    EXPECT_TRUE(host(0).CloseFile(file_).ok());
    ClusterTest::TearDown();
  }
  void WriteBytes() { ASSERT_TRUE(host(0).Write(file_, 0, "bytes").ok()); }
  bool RoundWaits() { return host(0).chunks->hanging_syncs() > 0; }
  std::future<Status> BeginUnlink() {
    return std::async(std::launch::async, [this] { return host(0).Unlink("old"); });
  }
  std::future<Status> BeginRename() {
    return std::async(std::launch::async,
                      [this] { return host(0).Rename(kRootInode, "moved", kRootInode, "moved-2"); });
  }
  static bool IsReady(const std::future<Status>& call) {
    return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  // The removal and the rename come after the round.
  void ExpectThatBothWait() {
    auto unlinked = BeginUnlink(), renamed = BeginRename();
    ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
    EXPECT_FALSE(IsReadyWithin(unlinked, std::chrono::seconds(1)));
    EXPECT_FALSE(IsReadyWithin(renamed, std::chrono::seconds(1)));
    EXPECT_EQ(host(1).Cat("old"), "old");
    EXPECT_EQ(host(1).Cat("moved"), "moved");
    host(0).chunks->LetSyncsGo();
    EXPECT_TRUE(unlinked.get().ok());
    EXPECT_TRUE(renamed.get().ok());
    EXPECT_EQ(host(1).Cat("file"), "bytes");
  }

  // Stores through a mapping, which no close waits for.
  void StorePages() {
    FileSystem::WriteRequest pages = host(0).RequestOf(file_, 0, "bytes");
    pages.from_page_cache = true;
    ASSERT_TRUE(host(0).Send(std::move(pages)).ok());
  }

  FileSystem::Created file_;
};

TEST_F(ClusterRemovalsTest, WaitForNoCloseThatIsUnderWay) {
  WriteBytes();
  host(0).chunks->HangSyncs();
  auto closed = std::async(std::launch::async, [&] { return host(0).Flush(file_); });
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  auto unlinked = BeginUnlink(), renamed = BeginRename();
  EXPECT_TRUE(Eventually([&] { return IsReady(unlinked) && IsReady(renamed); }));
  EXPECT_FALSE(IsReady(closed));
  host(0).chunks->LetSyncsGo();
  EXPECT_TRUE(unlinked.get().ok());
  EXPECT_TRUE(renamed.get().ok());
  EXPECT_TRUE(closed.get().ok());
}

// A rename of the file itself gives its name to what was closed.
TEST_F(ClusterRemovalsTest, ARenameWaitsForTheCloseOfItsFile) {
  WriteBytes();
  host(0).chunks->HangSyncs();
  auto closed = std::async(std::launch::async, [&] { return host(0).Flush(file_); });
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  auto renamed =
      std::async(std::launch::async, [&] { return host(0).Rename(kRootInode, "file", kRootInode, "moved"); });
  EXPECT_FALSE(IsReadyWithin(renamed, std::chrono::seconds(1)));
  EXPECT_EQ(host(1).Cat("moved"), "moved");
  host(0).chunks->LetSyncsGo();
  EXPECT_TRUE(closed.get().ok());
  EXPECT_TRUE(renamed.get().ok());
  EXPECT_EQ(host(1).Cat("moved"), "bytes");
  EXPECT_TRUE(host(0).Rename(kRootInode, "moved", kRootInode, "file").ok());
}

TEST_F(ClusterRemovalsTest, WaitForStoresThroughAMapping) {
  host(0).chunks->HangSyncs();
  StorePages();
  ExpectThatBothWait();
}

// Too few nodes can take them, and the round waits for nodes for minutes. What makes room does not wait with it.
TEST_F(ClusterRemovalsTest, WaitForNoCopiesThatCannotBeMade) {
  host(0).Put("emptied", "emptied");
  host(0).chunks->HangSyncs();
  StorePages();
  auto unlinked = BeginUnlink(), renamed = BeginRename();
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  host(0).chunks->lacks_nodes = true;  // a node is lost while they wait
  EXPECT_TRUE(unlinked.get().ok());
  EXPECT_TRUE(renamed.get().ok());
  EXPECT_TRUE(host(0).Rename(kRootInode, "emptied", kRootInode, "moved-2").ok());
  EXPECT_TRUE(host(0).Unlink("moved-2").ok());
  EXPECT_EQ(host(1).Cat("file"), "");
}

// A round that fails for other files is no reason to refuse a name.
TEST_F(ClusterRemovalsTest, ARenameOverAFileNeedsNoRoundThatSucceeds) {
  host(0).chunks->syncs_fail = true;
  StorePages();
  ASSERT_TRUE(Eventually([&] { return !host(0).Sync().ok(); }));
  EXPECT_TRUE(host(0).Rename(kRootInode, "moved", kRootInode, "old").ok());
  EXPECT_EQ(host(1).Cat("old"), "moved");
  EXPECT_FALSE(host(0).Rename(kRootInode, "file", kRootInode, "old").ok()) << "its own bytes have no copies";
  host(0).chunks->syncs_fail = false;
}

// Nothing was accepted of it: its name is published, and only its mark is to go.
TEST_F(ClusterRemovalsTest, WaitForNoFileThatIsOnlyMarked) {
  host(0).chunks->HangSyncs();
  const auto touched = host(0).Create("touched");
  ASSERT_TRUE(host(0).CloseFile(touched).ok());
  WriteBytes();
  auto closed = std::async(std::launch::async, [&] { return host(0).Flush(file_); });
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  EXPECT_TRUE(host(0).Unlink("old").ok());
  host(0).chunks->LetSyncsGo();
  EXPECT_TRUE(closed.get().ok());
}

TEST_F(ClusterRemovalsTest, WaitForACloseThatWaitsNoMore) {
  WriteBytes();
  host(0).chunks->HangSyncs();
  std::stop_source kill;
  Caller caller;
  caller.context = Context(kill.get_token());
  std::promise<Status> closed;
  host(0).fs->open_files().Flush(
      {file_.handle}, [&](const Status& status) { closed.set_value(status); }, caller);
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  kill.request_stop();
  EXPECT_FALSE(closed.get_future().get().ok());
  ExpectThatBothWait();
}

// Before it was known to wait: it is not marked, and another call would have to put the mark.
TEST_F(ClusterRemovalsTest, WaitForACloseThatWasKilledAtItsBegin) {
  ASSERT_TRUE(host(0).Write(file_, 0, "other").ok());
  ASSERT_TRUE(host(0).Flush(file_).ok());
  WriteBytes();
  host(0).chunks->HangSyncs();
  std::stop_source kill;
  kill.request_stop();
  Caller caller;
  caller.context = Context(kill.get_token());
  EXPECT_FALSE(host(0).Flush(file_, caller).ok());
  ExpectThatBothWait();
}

// Its error was told, and it holds up nothing else.
TEST_F(ClusterRemovalsTest, WaitForNoCloseThatFailed) {
  WriteBytes();
  host(0).chunks->syncs_fail = true;
  host(0).PutInVain("bad", "bad");
  EXPECT_TRUE(host(0).Rename(kRootInode, "moved", kRootInode, "moved-2").ok());
  EXPECT_TRUE(host(0).Unlink("old").ok());
  host(0).chunks->syncs_fail = false;
}

// What found its way to the store is waited for no more, whatever else is on its way.
TEST_F(ClusterRemovalsTest, WaitForNothingThatIsPublished) {
  StorePages();
  EXPECT_TRUE(host(0).Sync().ok());
  const auto other = host(0).Create("other");
  ASSERT_TRUE(host(0).Write(other, 0, "other").ok());
  host(0).chunks->HangSyncs();
  auto closed = std::async(std::launch::async, [&] { return host(0).Flush(other); });
  ASSERT_TRUE(Eventually([&] { return RoundWaits(); }));
  auto unlinked = BeginUnlink();
  EXPECT_TRUE(Eventually([&] { return IsReady(unlinked); }));
  host(0).chunks->LetSyncsGo();
  EXPECT_TRUE(unlinked.get().ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_TRUE(host(0).CloseFile(other).ok());
}

}  // namespace
}  // namespace cairnfs::fs
