// Who may make names while the room for metadata gets short, and who has taken it.
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kAlice = 12345, kBob = 12346;
constexpr uint64_t kReserve = 10 * kMiB;

class MetadataRoomTest : public testing::Test {
 protected:
  MetadataRoomTest() {
    world_.disk_options.size_bytes = 96 * kMiB;
    world_.store_options.reserve_bytes = kReserve;
    world_.Remake();
  }
  Status Admit(NameChange change, uint32_t uid) {
    Caller caller;
    caller.uid = uid;
    return World::Await<void>(
        [&](Done<void> done) { world_.fs->names().WhenAdmitted(change, std::move(done), caller); });
  }
  bool IsRefused(uint32_t uid) {
    const Status admitted = Admit(NameChange::kMakes, uid);
    if (!admitted.ok()) {
      EXPECT_EQ(admitted.error().code, ErrorCode::kNoSpace) << admitted.error().message;
    }
    return !admitted.ok();
  }
  // What is left for metadata once a fifth of the reserve is, soon: the disk is not asked all the time.
  void LeaveRoom(uint64_t bytes) {
    world_.engine->needed_bytes = world_.disk->GetSpace()->free_bytes - kReserve / 5 - bytes;
  }
  // Not even what alters names has room.
  void LeaveNone() { world_.engine->needed_bytes = world_.disk->GetSpace()->free_bytes - kReserve / 10; }
  void AwaitFull(NameChange change) {
    ASSERT_TRUE(Eventually([&] { return !Admit(change, 0).ok(); }));
  }
  static bool IsNoSpace(const Status& status) { return !status.ok() && status.error().code == ErrorCode::kNoSpace; }
  Status Copy(const FileSystem::Created& from, const FileSystem::Created& to, uint64_t offset) {
    const Writer::CopyRequest request{from.handle, 0, to.handle, offset, 4096};
    const auto copied =
        World::Await<size_t>([&](Done<size_t> done) { world_.fs->writer().CopyRange(request, std::move(done)); });
    return copied.ok() ? Status() : Status(copied.error());
  }
  Status SetTimes(const FileSystem::Created& file) {
    SetAttrRequest request;
    request.mtime = Timestamp{1, 0};
    const auto set = World::Await<meta::Attr>(
        [&](Done<meta::Attr> done) { world_.fs->attributes().SetAttr(file.attr.inode, request, std::move(done)); });
    return set.ok() ? Status() : Status(set.error());
  }
  Status Rename(const std::string& from, const std::string& to) {
    return World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, from, kRootInode, to}, {}, std::move(done));
    });
  }
  InodeId MakeLink(const std::string& name, uint32_t uid, size_t size) {
    meta::CreateParams params = WithMode(S_IFLNK | 0777);
    params.uid = uid;
    params.symlink_target = std::string(size, 'x');
    auto made = world_.fs->names().MakeNode({}, kRootInode, name, params);
    EXPECT_TRUE(made.ok());
    return made->inode;
  }
  void AliceMakesMuch() {
    for (int i = 0; i < 200; ++i) MakeLink("alice-" + std::to_string(i), kAlice, 4000);
    MakeLink("bob", kBob, 10);
  }

  World world_;
};

TEST_F(MetadataRoomTest, RootHasTheLastOfIt) {
  EXPECT_FALSE(IsRefused(kAlice));
  EXPECT_GT(world_.fs->maintenance().GetSpace()->inodes_free, 0u);
  LeaveRoom(kReserve / 10);
  EXPECT_TRUE(Eventually([&] { return IsRefused(kAlice); }));
  EXPECT_FALSE(IsRefused(0));
  EXPECT_EQ(world_.fs->maintenance().GetSpace()->inodes_free, 0u);
  EXPECT_EQ(world_.fs->maintenance().GetStatus().metadata_room_bytes, 0u);
  LeaveRoom(0);
  EXPECT_TRUE(Eventually([&] { return IsRefused(0); }));
  EXPECT_TRUE(Admit(NameChange::kRemoves, kAlice).ok());
  EXPECT_TRUE(Admit(NameChange::kAlters, kAlice).ok());
  LeaveRoom(20 * kMiB);
  EXPECT_TRUE(Eventually([&] { return !IsRefused(kAlice); }));
}

TEST_F(MetadataRoomTest, ALongNameTakesRoomAsANewOneDoes) {
  MakeLink("name", kAlice, 10);
  const auto rename = [&](const std::string& from, const std::string& to, meta::RenameMode mode) {
    Caller alice;
    alice.uid = kAlice;
    return World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, from, kRootInode, to, mode}, alice, std::move(done));
    });
  };
  LeaveRoom(kReserve / 10);
  EXPECT_TRUE(Eventually([&] { return IsRefused(kAlice); }));
  const std::string long_name(200, 'x');
  const Status longer = rename("name", long_name, meta::RenameMode::kReplace);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ErrorCode::kNoSpace) << longer.error().message;
  EXPECT_TRUE(rename("name", "longer", meta::RenameMode::kReplace).ok());
  EXPECT_TRUE(rename("longer", "s", meta::RenameMode::kReplace).ok());
  MakeLink("other", 0, 10);
  EXPECT_TRUE(rename("s", "other", meta::RenameMode::kExchange).ok());
  LeaveRoom(20 * kMiB);
  EXPECT_TRUE(Eventually([&] { return rename("s", long_name, meta::RenameMode::kReplace).ok(); }));
}

// The record of a file grows by them; all has room but for that.
TEST_F(MetadataRoomTest, BytesOfAFileNeedRoomForItsRecord) {
  auto source = world_.Create("source");
  ASSERT_TRUE(world_.Write(source, 0, RandomText(1, 64 * kKiB)).ok());
  ASSERT_TRUE(world_.Fsync(source).ok());
  auto file = world_.Create("file");
  LeaveRoom(0);
  AwaitFull(NameChange::kMakes);
  EXPECT_TRUE(IsNoSpace(world_.Write(file, 0, "bytes")));
  EXPECT_TRUE(IsNoSpace(Copy(source, file, 0)));
  EXPECT_TRUE(IsNoSpace(world_.Fallocate(file, {.offset = 0, .length = 4096})));
  EXPECT_EQ(world_.fs->names().GetAttr({}, file.attr.inode)->size, 0u);
  EXPECT_TRUE(world_.Punch(source, 4096, 4096).ok());
  EXPECT_TRUE(SetTimes(file).ok());
  EXPECT_TRUE(world_.Truncate(file, 10).ok());
  EXPECT_TRUE(world_.WriteBackPages(source, 0, std::string(4096, 'p')).ok()) << "the kernel drops what is refused";
  LeaveRoom(20 * kMiB);
  EXPECT_TRUE(Eventually([&] { return world_.Write(file, 0, "bytes").ok(); }));
  EXPECT_TRUE(Copy(source, file, 8192).ok());
  world_.CloseFile(file);
  world_.CloseFile(source);
}

TEST_F(MetadataRoomTest, TheLastOfItIsForRemovingAlone) {
  const std::string text = RandomText(1, 64 * kKiB);
  auto file = world_.Create("file");
  ASSERT_TRUE(world_.Write(file, 0, text).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  auto empty = world_.Create("empty");
  LeaveNone();
  AwaitFull(NameChange::kAlters);
  EXPECT_TRUE(IsNoSpace(world_.Punch(file, 4096, 4096)));
  EXPECT_TRUE(IsNoSpace(SetTimes(file)));
  EXPECT_TRUE(IsNoSpace(world_.Truncate(file, 10)));
  EXPECT_TRUE(IsNoSpace(world_.Truncate(empty, 10)));
  EXPECT_TRUE(IsNoSpace(Rename("file", "renamed")));
  EXPECT_EQ(*world_.Read(file, 0, text.size()), text);
  EXPECT_TRUE(IsNoSpace(world_.Truncate(empty, 0))) << "it may have no record yet";

  EXPECT_TRUE(world_.Truncate(file, 0).ok());
  EXPECT_TRUE(world_.Fsync(file).ok());
  EXPECT_TRUE(Rename("file", "name").ok());
  EXPECT_TRUE(Rename("name", "n").ok());
  EXPECT_TRUE(Admit(NameChange::kShortens, kAlice).ok());
  EXPECT_TRUE(Admit(NameChange::kRemoves, kAlice).ok());
  EXPECT_TRUE(world_.fs->names().Unlink({}, kRootInode, "n").ok());
  world_.CloseFile(file);
  world_.CloseFile(empty);
}

// No round has run, so that they take nothing on the disk yet: then all would find room.
TEST_F(MetadataRoomTest, RecordsThatAreStillToBeWrittenCount) {
  world_.fs_options.flush_interval_ms = 3'600'000;
  world_.Remake();
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < 5000; ++i) files.push_back(world_.Create("file" + std::to_string(i)));
  ASSERT_TRUE(world_.Fsync(files.front()).ok());
  LeaveRoom(12 * kMiB);  // two segments may take some of it
  const uint64_t rounds_before = world_.fs->maintenance().GetStatus().sync_rounds_total;
  for (const auto& file : files) ASSERT_TRUE(world_.Write(file, 0, "b").ok());
  EXPECT_GT(world_.fs->maintenance().GetStatus().sync_rounds_total, rounds_before)
      << "which shows that they take little";
  for (const auto& file : files) world_.CloseFile(file);
}

TEST_F(MetadataRoomTest, WhoHasMostOfItLeavesTheLastQuarterToOthers) {
  AliceMakesMuch();
  world_.engine->held_bytes = 50 * kMiB;
  LeaveRoom(10 * kMiB);
  EXPECT_TRUE(Eventually([&] { return IsRefused(kAlice); }));
  EXPECT_FALSE(IsRefused(kBob));
  EXPECT_FALSE(IsRefused(0));
  LeaveRoom(30 * kMiB);
  EXPECT_TRUE(Eventually([&] { return !IsRefused(kAlice); }));
}

TEST_F(MetadataRoomTest, WhatEachUserHasIsCounted) {
  AliceMakesMuch();
  const InodeId link = MakeLink("more of bob", kBob, 10);
  ASSERT_TRUE(world_.fs->attributes().SetXattr({}, link, "trusted.big", std::string(5000, 'v'), {}).ok());
  auto owners = world_.fs->maintenance().GetMetadataOwners({});
  ASSERT_TRUE(owners.ok());
  ASSERT_EQ(owners->size(), 3u);  // the root directory is root's
  const MetadataOwner& alice = (*owners)[0];
  EXPECT_EQ(alice.uid, kAlice);
  EXPECT_EQ(alice.inode_count, 200u);
  EXPECT_GE(alice.bytes, 200 * 4000u);
  EXPECT_LE(alice.bytes, 200 * 4200u);
  EXPECT_EQ(alice.xattr_bytes, 0u);
  for (const MetadataOwner& owner : *owners) {
    if (owner.uid != kBob) continue;
    EXPECT_EQ(owner.inode_count, 2u);
    EXPECT_GE(owner.xattr_bytes, 5000u);
    EXPECT_LE(owner.bytes, 6000u);
  }
}

// A directory in which everybody may make names, as /tmp: who makes them there has them.
TEST_F(MetadataRoomTest, NamesInADirectoryOfAnotherCountForWhoeverMadeThem) {
  for (unsigned i = 0; i < 500; ++i) MakeLink(std::string(200, 'n') + std::to_string(i), kBob, 10);
  auto owners = world_.fs->maintenance().GetMetadataOwners({});
  ASSERT_TRUE(owners.ok());
  EXPECT_EQ(owners->front().uid, kBob);
  EXPECT_GE(owners->front().bytes, 500 * 200u);
  EXPECT_LE(owners->back().bytes, 5000u) << "root has the directory alone";
}

}  // namespace
}  // namespace cairnfs::fs
