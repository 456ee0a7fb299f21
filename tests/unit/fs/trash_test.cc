// The trash of a filesystem: who may see and restore what, and that it goes before anybody lacks room.
#include "fs/trash.h"

#include <future>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "full_disk_fixture.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kSaver = 1000, kOther = 1001;
constexpr uint64_t kHourMs = 3'600'000;
const std::string kGoes = retention::GoingName("abcdefghijklmnop", "step-1");

class TrashTest : public testing::Test {
 protected:
  TrashTest() {
    world_.fs_options.trash_ms = kHourMs;
    world_.Remake();
  }
  void Save(std::string_view name, uint64_t seed, size_t size, uint32_t uid = 0) {
    auto file = world_.Create(name, uid);
    ASSERT_TRUE(world_.Write(file, 0, RandomText(seed, size)).ok());
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
  }
  Status Unlink(std::string_view name, uint32_t uid = 0) {
    return world_.fs->names().Unlink({}, kRootInode, name, uid);
  }
  InodeId MakeDirectory(InodeId parent, std::string_view name, uint32_t uid, uint32_t mode = 0755) {
    meta::CreateParams params;
    params.mode = S_IFDIR | mode;
    params.uid = uid;
    auto made = world_.fs->names().MakeNode({}, parent, name, params);
    EXPECT_TRUE(made.ok());
    return made->inode;
  }
  static Credentials As(uint32_t uid) { return {.uid = uid, .gid = uid, .groups = {}}; }
  std::vector<TrashItem> ListAs(uint32_t uid) {
    auto page = world_.fs->trash().List({}, As(uid), "");
    EXPECT_TRUE(page.ok() && page->next.empty());
    return page.ok() ? page->items : std::vector<TrashItem>();
  }
  Result<std::string> RestoreAs(uint32_t uid, InodeId id, const std::optional<Names::Place>& place = {}) {
    return world_.fs->names().Restore({}, As(uid), id, place);
  }

  World world_;
};

TEST_F(TrashTest, WhatIsUnlinkedIsSeenByItsOwnerAndRestored) {
  Save("file", 1, 100'000, kSaver);
  ASSERT_TRUE(Unlink("file", kSaver).ok());
  EXPECT_TRUE(ListAs(kOther).empty());
  ASSERT_EQ(ListAs(kSaver).size(), 1u);
  const TrashItem item = ListAs(0).at(0);
  EXPECT_EQ(item.path, "file");
  EXPECT_EQ(item.entry.record.bytes, 100'000u) << "also before it is published";
  const InodeId id = item.entry.parts.inode;
  EXPECT_EQ(RestoreAs(kOther, id).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RestoreAs(kSaver, id).error().code, ErrorCode::kPermission) << "the root is not the owner's";
  const InodeId home = MakeDirectory(kRootInode, "home", kSaver);
  EXPECT_EQ(*RestoreAs(kSaver, id, Names::Place{home, "back"}), "home/back");
  EXPECT_TRUE(ListAs(0).empty());
  // It may be counted just then.
  EXPECT_TRUE(Eventually([&] { return world_.fs->trash().entries() == 0; }));
  world_.Reopen();
  EXPECT_EQ(world_.fs->names().Lookup({}, home, "back")->size, 100'000u);
}

TEST_F(TrashTest, ManyAreListedByPages) {
  const InodeId directory = MakeDirectory(kRootInode, "dir", 0);
  constexpr size_t kCount = 450;
  for (size_t number = 0; number < kCount; number++) {
    MakeDirectory(directory, std::to_string(number), number % 3 == 0 ? kSaver : 0);
    ASSERT_TRUE(world_.fs->names().Rmdir({}, directory, std::to_string(number)).ok());
  }
  const auto count_of = [&](uint32_t uid) {
    std::set<std::string> paths;
    std::string after;
    do {
      const auto page = world_.fs->trash().List({}, As(uid), after);
      EXPECT_TRUE(page.ok());
      if (!page.ok()) break;
      for (const TrashItem& item : page->items) paths.insert(item.path);
      after = page->next;
    } while (!after.empty());
    EXPECT_TRUE(paths.contains("dir/3"));
    return paths.size();
  };
  EXPECT_EQ(count_of(0), kCount);
  EXPECT_EQ(count_of(kSaver), kCount / 3);
  for (const std::string& wrong : {std::string("x"), std::string("I12345678"), meta::DoomedKey(directory)}) {
    EXPECT_EQ(world_.fs->trash().List({}, As(0), wrong).error().code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(TrashTest, APlaceThatIsTakenOrGoneIsSaid) {
  Save("file", 1, 10);
  ASSERT_TRUE(Unlink("file").ok());
  Save("file", 2, 10);
  const InodeId id = ListAs(0).at(0).entry.parts.inode;
  const auto taken = RestoreAs(0, id);
  EXPECT_EQ(taken.error().code, ErrorCode::kAlreadyExists);
  EXPECT_NE(taken.error().message.find("its place is taken"), std::string::npos) << taken.error().message;
  const InodeId directory = MakeDirectory(kRootInode, "dir", 0);
  const InodeId inner = MakeDirectory(directory, "in", 0);
  ASSERT_TRUE(world_.fs->names().Rmdir({}, directory, "in").ok());
  ASSERT_TRUE(world_.fs->names().Rmdir({}, kRootInode, "dir").ok());
  ASSERT_EQ(ListAs(0).size(), 3u);
  const auto gone = RestoreAs(0, inner);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_NE(gone.error().message.find("restore that first"), std::string::npos) << gone.error().message;
  EXPECT_TRUE(RestoreAs(0, directory).ok());
  EXPECT_TRUE(RestoreAs(0, inner).ok());
}

TEST_F(TrashTest, ARestoreNeedsTheWayToItsPlace) {
  Save("file", 1, 10, kSaver);
  ASSERT_TRUE(Unlink("file", kSaver).ok());
  const InodeId id = ListAs(0).at(0).entry.parts.inode;
  const InodeId closed = MakeDirectory(kRootInode, "closed", kOther, 0700);
  const InodeId open = MakeDirectory(closed, "open", kOther, 0777);
  EXPECT_EQ(RestoreAs(kSaver, id, Names::Place{open, "x"}).error().code, ErrorCode::kPermission);
  EXPECT_EQ(RestoreAs(kSaver, id, Names::Place{InodeId{12345}, "x"}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RestoreAs(kSaver, id, Names::Place{open, "a/b"}).error().code, ErrorCode::kPermission);
  EXPECT_EQ(RestoreAs(0, id, Names::Place{open, "a/b"}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(RestoreAs(0, id, Names::Place{open, "x"}).ok());
}

TEST_F(TrashTest, UnderANameOfRetentionsADirectoryGoesWithAllBelow) {
  world_.fs_options.trash_ms = 0;
  world_.Reopen();
  const InodeId run = MakeDirectory(kRootInode, kGoes, kSaver);
  const InodeId below = MakeDirectory(run, "below", kOther);
  EXPECT_EQ(world_.fs->names().Rmdir({}, kRootInode, kGoes, kSaver).error().code, ErrorCode::kNotEmpty)
      << "a directory in it is another user's";
  ASSERT_TRUE(world_.fs->names().Rmdir({}, run, "below", kOther).ok());
  MakeDirectory(run, "below", kSaver);
  const Status removed = world_.fs->names().Rmdir({}, kRootInode, kGoes, kSaver);
  ASSERT_TRUE(removed.ok()) << removed.error().message;
  const TrashItem item = ListAs(kSaver).at(0);
  EXPECT_EQ(item.path, "step-1");
  EXPECT_TRUE(item.entry.record.by_retention);
  ASSERT_TRUE(RestoreAs(0, item.entry.parts.inode).ok());
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "step-1")->inode, run);
  EXPECT_NE(below, run);
}

// The look at all below may take long, and the thread of the caller is one that receives requests.
TEST_F(TrashTest, UnderANameOfRetentionsItIsRemovedOnAnotherThread) {
  MakeDirectory(kRootInode, kGoes, 0);
  MakeDirectory(kRootInode, "other", 0);
  const auto thread_of = [&](const std::string& name) {
    std::promise<std::thread::id> removed_by;
    world_.fs->names().Rmdir(kRootInode, name, {}, [&](const Status& status) {
      EXPECT_TRUE(status.ok());
      removed_by.set_value(std::this_thread::get_id());
    });
    return removed_by.get_future().get();
  };
  EXPECT_NE(thread_of(kGoes), std::this_thread::get_id());
  EXPECT_EQ(thread_of("other"), std::this_thread::get_id());
}

TEST_F(TrashTest, WhatExpiresIsRemovedWithItsBytes) {
  world_.fs_options.trash_ms = 30'000;
  world_.Reopen();
  Save("file", 1, 10 * kMiB);
  ASSERT_TRUE(Unlink("file").ok());
  const uint64_t inodes = world_.fs->maintenance().GetStatus().inode_count;
  EXPECT_EQ(world_.fs->maintenance().GetStatus().trash_bytes, 10 * kMiB);
  Clock::SleepFor(std::chrono::minutes(1));
  EXPECT_TRUE(ListAs(0).empty());
  EXPECT_EQ(world_.fs->maintenance().GetStatus().inode_count, inodes - 1);
  EXPECT_EQ(world_.fs->maintenance().GetStatus().trash_bytes, 0u);
}

TEST_F(TrashTest, NothingOfAReadOnlyMountIsRestoredOrEmptied) {
  Save("file", 1, 10);
  ASSERT_TRUE(Unlink("file").ok());
  const InodeId id = ListAs(0).at(0).entry.parts.inode;
  const auto set_read_only = [&](bool read_only) {
    FsOptions options = world_.fs_options;
    options.read_only = read_only;
    return World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Change(options, std::move(done)); });
  };
  ASSERT_TRUE(set_read_only(true).ok());
  EXPECT_EQ(RestoreAs(0, id).error().code, ErrorCode::kPermission);
  EXPECT_EQ(world_.fs->trash().Empty({}, As(0), {}).error().code, ErrorCode::kPermission);
  EXPECT_FALSE(world_.fs->trash().EmptyOldest());
  EXPECT_EQ(ListAs(0).size(), 1u);
  ASSERT_TRUE(set_read_only(false).ok());
  EXPECT_TRUE(RestoreAs(0, id).ok());
}

TEST_F(TrashTest, WhoMayNotLookIsToldNoPath) {
  const InodeId closed = MakeDirectory(kRootInode, "closed", kOther, 0700);
  const InodeId secret = MakeDirectory(closed, "secret", kOther, 0777);
  MakeDirectory(secret, "mine", kSaver);
  ASSERT_TRUE(world_.fs->names().Rmdir({}, secret, "mine", kSaver).ok());
  EXPECT_EQ(ListAs(kOther).at(0).path, "closed/secret/mine");
  EXPECT_EQ(ListAs(kSaver).at(0).path, "#" + std::to_string(secret.value) + "/mine");
  const auto refused = RestoreAs(kSaver, ListAs(0).at(0).entry.parts.inode);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission);
  EXPECT_EQ(refused.error().message.find("secret"), std::string::npos) << refused.error().message;
}

TEST_F(TrashTest, NothingIsRestoredToANameOfRetentions) {
  Save("file", 1, 10);
  ASSERT_TRUE(Unlink("file").ok());
  const InodeId id = ListAs(0).at(0).entry.parts.inode;
  EXPECT_EQ(RestoreAs(0, id, Names::Place{kRootInode, kGoes}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ListAs(0).size(), 1u);
}

// To the kernel what rmdir(2) has removed is dead for good.
TEST_F(TrashTest, ARestoredDirectoryIsANewOneToTheKernel) {
  const InodeId directory = MakeDirectory(kRootInode, "dir", 0);
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "dir")->generation, 0u);
  ASSERT_TRUE(world_.fs->names().Rmdir({}, kRootInode, "dir").ok());
  ASSERT_TRUE(RestoreAs(0, directory).ok());
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "dir")->generation, 1u);
  EXPECT_EQ(world_.fs->names().Lookup({}, directory, ".")->generation, 1u);
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "dir")->inode, directory);
}

TEST_F(TrashTest, ALackOfRoomEmptiesManyEntriesAtOnce) {
  constexpr size_t kCount = 2500;  // their bytes, of which there are none, are never enough
  for (size_t number = 0; number < kCount; number++) {
    MakeDirectory(kRootInode, "d", 0);
    ASSERT_TRUE(world_.fs->names().Rmdir({}, kRootInode, "d").ok());
  }
  EXPECT_TRUE(world_.fs->trash().EmptyOldest());
  EXPECT_TRUE(Eventually([&] { return !world_.fs->trash().HoldsAny(); })) << "a look may still be under way";
  EXPECT_FALSE(world_.fs->trash().EmptyOldest()) << "there is nothing";
  EXPECT_TRUE(ListAs(0).empty());
  EXPECT_EQ(world_.fs->trash().entries(), 0u);
}

TEST_F(TrashTest, WhatTwoCallsEmptyAtOnceCountsOnce) {
  Save("mine", 1, 100, kSaver);
  Save("other", 2, 100, kOther);
  ASSERT_TRUE(Unlink("mine").ok() && Unlink("other").ok());
  std::thread twin([&] { EXPECT_TRUE(world_.fs->trash().Empty({}, As(kSaver), std::nullopt).ok()); });
  EXPECT_TRUE(world_.fs->trash().Empty({}, As(kSaver), std::nullopt).ok());
  twin.join();
  EXPECT_EQ(world_.fs->trash().entries(), 1u);
  EXPECT_EQ(ListAs(kOther).size(), 1u);
}

TEST_F(TrashTest, ADirectoryWithADamagedNameHoldsUpNoOther) {
  std::vector<InodeId> below;
  for (const std::string name : {"a", "b"}) {
    const std::string goes = retention::GoingName("abcdefghijklmno" + name, name);
    below.push_back(MakeDirectory(MakeDirectory(kRootInode, goes, 0), "below", 0));
    ASSERT_TRUE(world_.fs->names().Rmdir({}, kRootInode, goes).ok());
  }
  ASSERT_TRUE(world_.kv->Commit({}, kv::Transaction().Put(meta::InodeKey(below[0]), "damaged")).ok());
  EXPECT_TRUE(world_.fs->trash().EmptyOldest());
  EXPECT_EQ(world_.names->ListDoomed({}, 10)->size(), 1u) << "all of the other is gone";
  EXPECT_FALSE(world_.fs->trash().EmptyOldest()) << "what is damaged makes no room";
}

TEST_F(TrashTest, WithoutRoomForNamesWhatIsRemovedIsGoneForGood) {
  Save("first", 1, 10);
  Save("second", 2, 10);
  ASSERT_TRUE(Unlink("first").ok());
  ASSERT_EQ(ListAs(0).size(), 1u);
  world_.engine->needed_bytes = world_.disk->GetSpace()->free_bytes;
  const auto admit = [&](NameChange change) {
    return World::Await<void>([&](Done<void> done) { world_.fs->names().WhenAdmitted(change, std::move(done)); });
  };
  ASSERT_TRUE(Eventually([&] { return !admit(NameChange::kMakes).ok(); }));
  EXPECT_TRUE(ListAs(0).empty()) << "the oldest went before that";
  ASSERT_TRUE(admit(NameChange::kRemoves).ok());
  ASSERT_TRUE(Unlink("second").ok());
  EXPECT_TRUE(ListAs(0).empty());
  world_.engine->needed_bytes = 0;
}

class FullTrashTest : public TrashTest {
 protected:
  FullTrashTest() {
    world_.disk_options.size_bytes = 96 * kMiB;
    world_.store_options.reserve_bytes = 8 * kMiB;
    world_.Remake();
  }
  // Before anything is written, as chunks are stored in the background.
  static void SetFull(io::FaultyDisk& disk) {
    io::Faults full;
    full.growth_bytes_max = 0;
    disk.SetFaults(full);
  }
};

TEST_F(FullTrashTest, TheOldestGoesBeforeAWriteIsRefused) {
  const uint64_t free_bytes = world_.fs->maintenance().GetSpace()->available_bytes;
  for (uint64_t number = 1; number <= 8; number++) {
    const std::string name = "file-" + std::to_string(number);
    auto file = world_.Create(name);
    ASSERT_TRUE(world_.Write(file, 0, RandomText(number, 20 * kMiB)).ok()) << number;
    ASSERT_TRUE(world_.Fsync(file).ok()) << number;
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
    ASSERT_TRUE(Unlink(name).ok());
    EXPECT_GT(world_.fs->maintenance().GetSpace()->available_bytes, free_bytes - 40 * kMiB) << "it counts as free";
  }
  const auto items = ListAs(0);
  ASSERT_FALSE(items.empty());
  EXPECT_LT(items.size(), 8u);
  EXPECT_EQ(items.back().path, "file-8");
  EXPECT_TRUE(RestoreAs(0, items.back().entry.parts.inode).ok());
}

// Bytes were accepted, and others took the room meanwhile: whoever waits for them is told of no lack that the trash
// ends.
TEST_F(FullTrashTest, ASyncThatLacksRoomWaitsForTheTrash) {
  world_.fs_options.flush_interval_ms = 600'000;
  io::FaultyDisk& disk = world_.RemakeOnFaultyDisk();
  Save("old", 1, 60 * kMiB);
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  world_.Reopen();
  ASSERT_TRUE(Unlink("old").ok());
  auto file = world_.Create("file");
  SetFull(disk);
  ASSERT_TRUE(world_.Write(file, 0, RandomText(2, kMiB)).ok());
  const Status synced = world_.Fsync(file);
  EXPECT_TRUE(synced.ok()) << synced.error().message;
  EXPECT_TRUE(ListAs(0).empty());
  disk.SetFaults({});
  world_.CloseFile(file);
}

// The last chance of what was accepted: an unmount, or a remount that lets nothing be changed after it.
TEST_F(FullTrashTest, WhatWasAcceptedFindsRoomAtTheEnd) {
  world_.fs_options.flush_interval_ms = 600'000;
  for (const bool remounts : {true, false}) {
    io::FaultyDisk& disk = world_.RemakeOnFaultyDisk();
    Save("old", 1, 50 * kMiB);
    world_.Reopen();
    ASSERT_TRUE(Unlink("old").ok());
    auto file = world_.Create("file");
    SetFull(disk);
    ASSERT_TRUE(world_.Write(file, 0, RandomText(3, kMiB)).ok());
    world_.fs->open_files().Release(file.handle);
    if (remounts) {
      FsOptions options = world_.fs_options;
      options.read_only = true;
      const Status changed =
          World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Change(options, std::move(done)); });
      EXPECT_TRUE(changed.ok()) << changed.error().message;
    }
    world_.Close();  // which expects that all is durable
    disk.SetFaults({});
    world_.Open(false);
    EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "file")->size, kMiB);
    EXPECT_TRUE(ListAs(0).empty());
  }
}

// It promises no room, so it takes none from the trash; what it cannot promise anyway is refused as ever.
TEST_F(FullTrashTest, FallocateEmptiesNothing) {
  Save("old", 1, 60 * kMiB);
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  world_.Reopen();
  ASSERT_TRUE(Unlink("old").ok());
  const uint64_t free_bytes = world_.fs->maintenance().GetSpace()->available_bytes;
  ASSERT_GT(free_bytes, 60 * kMiB);
  auto file = world_.Create("file");
  const Status refused = world_.Fallocate(file, {.offset = 0, .length = uint64_t{1} << 50});
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  // The round that records the removal takes some of it meanwhile.
  EXPECT_EQ(world_.Fallocate(file, {.offset = 0, .length = free_bytes + kMiB}).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(world_.Fallocate(file, {.offset = 0, .length = free_bytes - 8 * kMiB}).ok());
  EXPECT_EQ(ListAs(0).size(), 1u);
  world_.CloseFile(file);
}

TEST_F(FullTrashTest, ManyWhoLackTheSameRoomEmptyItOnce) {
  world_.disk_options.size_bytes = 320 * kMiB;
  world_.fs_options.flush_interval_ms = 600'000;
  io::FaultyDisk& disk = world_.RemakeOnFaultyDisk();
  for (uint64_t number = 0; number < 6; number++) Save("old-" + std::to_string(number), number, 24 * kMiB);
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  world_.Reopen();
  for (uint64_t number = 0; number < 6; number++) ASSERT_TRUE(Unlink("old-" + std::to_string(number)).ok());
  std::vector<FileSystem::Created> files;
  for (uint64_t number = 0; number < 8; number++) files.push_back(world_.Create("file-" + std::to_string(number)));
  SetFull(disk);
  for (uint64_t number = 0; number < 8; number++) {
    ASSERT_TRUE(world_.Write(files[number], 0, RandomText(10 + number, kMiB)).ok());
  }
  std::vector<std::promise<Status>> synced(files.size());
  for (size_t i = 0; i < files.size(); i++) {
    world_.fs->open_files().Fsync(files[i].handle, files[i].attr.inode,
                                  [&synced, i](const Result<void>& status) { synced[i].set_value(status); });
  }
  for (auto& one : synced) {
    const Status status = one.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  // 64 MiB are the least that goes at a time.
  EXPECT_EQ(ListAs(0).size(), 3u);
  disk.SetFaults({});
  for (const FileSystem::Created& file : files) world_.CloseFile(file);
}

}  // namespace
}  // namespace cairnfs::fs
