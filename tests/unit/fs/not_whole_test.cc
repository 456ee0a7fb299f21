// Files of which something accepted found no room or is lost: what becomes of their renames.
#include "full_disk_fixture.h"

namespace cairnfs::fs {
namespace {

TEST_F(NoRoomForAccepted, NoRenameShowsAFileThatIsNotWhole) {
  for (int times = 0; times < 3; ++times) {
    const Status renamed = Rename();
    ASSERT_FALSE(renamed.ok()) << "told before or not";
    EXPECT_EQ(renamed.error().code, ErrorCode::kNoSpace) << renamed.error().message;
  }
  EXPECT_TRUE(world_.fs->Lookup(kRootInode, "file").ok());
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Rename().ok());
}

// A round forgets why a chunk could not be stored before it tries again, and may be long about it.
TEST_F(NoRoomForAccepted, NoRenameShowsAFileThatIsNotWholeWhileARoundTriesAgain) {
  const std::string bytes = RandomText(2, 1000);
  disk_->SetFaults({});
  ReopenWithoutRoom({{kMiB, bytes}});
  EXPECT_FALSE(Sync().ok());
  EXPECT_FALSE(Rename().ok()) << "somebody is told";
  world_.engine->HoldPutOf(bytes);
  std::future<Status> round = std::async(std::launch::async, [&] { return Sync(); });
  ASSERT_TRUE(Eventually([&] { return world_.engine->holding.load(); }));
  const Status renamed = Rename();
  world_.engine->holding = false;
  EXPECT_FALSE(round.get().ok());
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.error().code, ErrorCode::kNoSpace) << renamed.error().message;
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Rename().ok());
}

TEST_F(NoRoomForAccepted, AFileWhoseLostBytesWereWrittenAgainIsRenamedAtOnce) {
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  ASSERT_TRUE(Eventually([&] { return world_.Write(file_, 0, "lost").ok(); }));  // the room is looked at now and then
  world_.engine->index_unreadable = true;
  EXPECT_FALSE(Sync().ok());
  EXPECT_FALSE(Flush().ok());
  world_.engine->index_unreadable = false;
  EXPECT_FALSE(Rename().ok()) << "they are in memory, as the tail of a stream, but no round stores them again";
  ASSERT_TRUE(world_.Write(file_, 2, "ew").ok());
  EXPECT_FALSE(Rename().ok()) << "this is half of them";
  ASSERT_TRUE(world_.Write(file_, 0, "an").ok());
  const Status renamed = Rename();
  EXPECT_TRUE(renamed.ok()) << renamed.error().message;

  EXPECT_TRUE(Sync().ok());
  world_.fs->Release(file_.handle, file_.attr.inode);
  world_.Reopen();
  file_ = world_.OpenByName("final");
  EXPECT_EQ(*world_.Read(file_, 0, 4), "anew");
}

}  // namespace
}  // namespace cairnfs::fs
