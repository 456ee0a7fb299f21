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
