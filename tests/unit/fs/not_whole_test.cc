// Files of which something accepted found no room or is lost: what becomes of their renames, and of their errors.
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/recipe.h"
#include "full_disk_fixture.h"

namespace cairnfs::fs {
namespace {

// Pieces of a file whose recipe does not fit its record. They need no room where the chunk is known; the recipe's page
// does.
std::vector<std::pair<uint64_t, std::string>> ManyPieces(const std::string& chunk) {
  std::vector<std::pair<uint64_t, std::string>> pieces;
  for (uint64_t i = 1; i <= kInlineExtentsMax + 1; ++i) pieces.emplace_back(i * kMiB, chunk);
  return pieces;
}

void ExpectRecipeWithoutRoom(const Status& synced) {
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kNoSpace);
  EXPECT_NE(synced.error().message.find("recipe"), std::string::npos) << synced.error().message;
}

class NoRoomForRecipe : public NoRoomForAccepted {
 protected:
  NoRoomForRecipe() {
    const std::string known = RandomText(2, 1000);
    disk_->SetFaults({});
    EXPECT_TRUE(Sync().ok());
    // The room is looked at now and then.
    EXPECT_TRUE(Eventually([&] { return world_.Write(file_, 60 * kMiB, known).ok(); }));  // a chunk of its own
    ReopenWithoutRoom(ManyPieces(known));
    ExpectRecipeWithoutRoom(Sync());
  }
};

TEST_F(NoRoomForAccepted, NoRenameShowsAFileThatIsNotWhole) {
  for (int times = 0; times < 3; ++times) {
    const Status renamed = Rename();
    ASSERT_FALSE(renamed.ok()) << "told before or not";
    EXPECT_EQ(renamed.error().code, ErrorCode::kNoSpace) << renamed.error().message;
  }
  EXPECT_TRUE(world_.fs->names().Lookup({}, kRootInode, "file").ok());
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
  EXPECT_TRUE(Eventually([&] { return world_.engine->holding.load(); }));
  const Status renamed = Rename();
  world_.engine->LetGo();
  EXPECT_FALSE(round.get().ok());
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.error().code, ErrorCode::kNoSpace) << renamed.error().message;
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Rename().ok());
}

// The room was there when they were written, and others took it.
TEST_F(NoRoomForAccepted, ARenameWaitsUntilItIsKnownWhetherWhatIsOnItsWayHasRoom) {
  const std::string bytes = RandomText(2, 1000);
  disk_->SetFaults({});
  ReopenWithoutRoom({{kMiB, bytes}});
  ASSERT_TRUE(Eventually([&] { return world_.fs->maintenance().GetStatus().store.available_bytes == 0; }));
  world_.engine->HoldPutOf(bytes);
  std::future<Status> renamed = std::async(std::launch::async, [&] { return Rename(); });
  EXPECT_TRUE(Eventually([&] { return world_.engine->holding.load(); }));
  EXPECT_FALSE(world_.fs->names().Lookup({}, kRootInode, "done").ok());
  world_.engine->LetGo();
  const Status refused = renamed.get();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << refused.error().message;
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
  world_.fs->open_files().Release(file_.handle);
  world_.Reopen();
  file_ = world_.OpenByName("done");
  EXPECT_EQ(*world_.Read(file_, 0, 4), "anew");
}

TEST_F(NoRoomForRecipe, TheFileIsNotRenamed) {
  for (int times = 0; times < 3; ++times) EXPECT_FALSE(Rename().ok()) << "told before or not";
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Rename().ok());
}

TEST_F(NoRoomForRecipe, OneThatFoundRoomAfterAllIsNotToldAsAnError) {
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  const Status renamed = Rename();
  EXPECT_TRUE(renamed.ok()) << renamed.error().message;
  EXPECT_TRUE(Flush().ok());
}

TEST_F(NoRoomForRecipe, TheFileCanBeEmptied) {
  EXPECT_TRUE(world_.Truncate(file_, 0).ok());
  EXPECT_TRUE(Sync().ok()) << "nothing is left that needs room";
  const Status renamed = Rename();
  EXPECT_TRUE(renamed.ok()) << "its error was of a recipe that is no more: " << renamed.error().message;
}

// What is stored waits until what lies below it can be read again.
TEST(FullDisk, ALackOfDescriptorsForTheRecipeLosesNothing) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  auto sync = [&] {
    return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
  };
  auto file = world.Create("file");
  for (const auto& [offset, piece] : ManyPieces(RandomText(1, 1000))) {
    ASSERT_TRUE(world.Write(file, offset, piece).ok());
  }
  ASSERT_TRUE(world.Write(file, kLeafBytes, RandomText(2, 1000)).ok());
  world.CloseFile(file);
  // The first leaf is in the first segment, what names it and the second leaf in the next, and a third is written on.
  for (uint64_t times = 1; times <= 2; ++times) {
    world.Reopen();
    file = world.OpenByName("file");
    ASSERT_TRUE(world.Write(file, kLeafBytes + times * kMiB, RandomText(2 + times, 1000)).ok());
    ASSERT_TRUE(sync().ok());
    if (times == 1) world.CloseFile(file);
  }

  const std::string bytes = RandomText(5, 1000);
  disk.SetFaults({.opens_max = 0});
  ASSERT_TRUE(world.Write(file, kMiB / 2, bytes).ok());
  const Status refused = sync();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << refused.error().message;
  EXPECT_NE(refused.error().message.find("the recipe"), std::string::npos) << refused.error().message;
  disk.SetFaults({});
  EXPECT_TRUE(sync().ok());
  EXPECT_TRUE(world.Fsync(file).ok()) << "it has passed, and is no error of the file's";
  world.CloseFile(file);
  world.Reopen();
  file = world.OpenByName("file");
  EXPECT_EQ(*world.Read(file, kMiB / 2, bytes.size()), bytes);
  world.fs->open_files().Release(file.handle);
}

// Far less than what makes a collection begin else, and nobody writes any more.
TEST(FullDisk, LittleThatIsDeletedMakesRoomForARecipe) {
  World world;
  world.fs_options.collect_after_bytes = kGiB;
  world.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  const std::string bytes = RandomText(2, 1000);
  auto known = world.Create("known");
  ASSERT_TRUE(world.Write(known, 0, bytes).ok());
  world.CloseFile(known);
  world.Reopen();
  ASSERT_NO_FATAL_FAILURE(SaveOld(world));
  auto sync = [&] {
    return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
  };
  auto file = world.Create("file");
  for (const auto& [offset, piece] : ManyPieces(bytes)) ASSERT_TRUE(world.Write(file, offset, piece).ok());
  io::Faults full;
  full.growth_bytes_max = 0;
  disk.SetFaults(full);
  ExpectRecipeWithoutRoom(sync());
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "old").ok());
  EXPECT_TRUE(Eventually([&] { return sync().ok(); }));
  EXPECT_EQ(*world.Read(file, kMiB, bytes.size()), bytes);
  world.fs->open_files().Release(file.handle);
  disk.SetFaults({});
}

}  // namespace
}  // namespace cairnfs::fs
