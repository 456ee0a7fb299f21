// Who may make names on any host while the disk of the host that keeps them gets full.
#include "cluster_fixture.h"
#include "fixture.h"

namespace cairnfs::fs {
namespace {

class ClusterMetadataRoomTest : public ClusterTest {
 protected:
  static constexpr uint32_t kAlice = 12345, kBob = 12346;

  void SetUp() override {
    ClusterTest::SetUp();
    store_.reset();
    auto engine = std::make_unique<FullableEngine>();
    names_engine_ = engine.get();
    engine_ = std::move(engine);
    kv::HostedStoreOptions options;
    options.keeps_room = true;
    auto store = kv::HostedStore::Open(*engine_, options);
    ASSERT_TRUE(store.ok());
    store_ = std::move(*store);
    first_keeps_names_ = true;
    MakeHosts(2);
  }
  uint64_t reserve() { return host(0).local->reserve_bytes(); }
  // What is left for metadata once a fifth of the reserve is, soon: the disk is not asked all the time.
  void LeaveRoom(uint64_t bytes) {
    names_engine_->needed_bytes = host(0).disk->GetSpace()->free_bytes - reserve() / 5 - bytes;
  }
  // Not even for what gets longer.
  void LeaveNone() { names_engine_->needed_bytes = host(0).disk->GetSpace()->free_bytes - reserve() / 10; }
  static Caller As(uint32_t uid) {
    Caller caller;
    caller.uid = uid;
    return caller;
  }
  static Status Make(Host& at, const std::string& name, uint32_t uid, uint32_t type = S_IFREG) {
    meta::CreateParams params;
    params.mode = type | 0777;
    params.uid = uid;
    if (type == S_IFLNK) params.symlink_target = std::string(4000, 'x');
    const auto made = at.fs->names().MakeNode({}, kRootInode, name, params);
    return made.ok() ? Status() : Status(made.error());
  }
  static Status Rename(Host& at, const std::string& from, const std::string& to, uint32_t uid) {
    return Host::Await<void>([&](Done<void> done) {
      at.fs->names().Rename({kRootInode, from, kRootInode, to}, As(uid), std::move(done));
    });
  }
  static Status Link(Host& at, InodeId inode, const std::string& name, uint32_t uid) {
    const auto linked = Host::Await<meta::Attr>(
        [&](Done<meta::Attr> done) { at.fs->names().Link(inode, kRootInode, name, std::move(done), As(uid)); });
    return linked.ok() ? Status() : Status(linked.error());
  }
  static Status SetXattr(Host& at, InodeId inode, uint32_t uid) {
    return at.fs->attributes().SetXattr(As(uid), inode, "user.a", "value", meta::Namespace::XattrMode::kSet);
  }
  static bool IsRefused(const Status& status) {
    if (!status.ok()) {
      EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
    }
    return !status.ok();
  }
  // Tries it with names that are not there yet.
  bool IsRefused(Host& at, uint32_t uid) { return IsRefused(Make(at, "tried" + std::to_string(++tried_), uid)); }

  FullableEngine* names_engine_ = nullptr;  // engine_
  int tried_ = 0;
};

TEST_F(ClusterMetadataRoomTest, WhatMakesNamesIsRefusedOnEachHost) {
  const InodeId file = host(1).Put("file", "bytes");
  LeaveRoom(reserve() / 10);
  ASSERT_TRUE(Eventually([&] { return IsRefused(host(1), kAlice); }));
  const std::string long_name(200, 'x');
  for (size_t i : {0, 1}) {
    SCOPED_TRACE(i);
    const std::string name = "made" + std::to_string(i);
    for (uint32_t type : {S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO})
      EXPECT_TRUE(IsRefused(Make(host(i), name, kAlice, type)));
    EXPECT_TRUE(IsRefused(Link(host(i), file, name, kAlice)));
    EXPECT_TRUE(IsRefused(SetXattr(host(i), file, kAlice)));
    EXPECT_TRUE(IsRefused(Rename(host(i), "file", long_name, kAlice)));
    EXPECT_FALSE(IsRefused(Link(host(i), file, name, 0)));
    EXPECT_FALSE(IsRefused(SetXattr(host(i), file, 0)));
    EXPECT_EQ(host(i).fs->maintenance().GetSpace()->inodes_free, 0u);
    EXPECT_EQ(host(i).fs->maintenance().GetStatus().metadata_room_bytes, 0u);
  }
  LeaveRoom(reserve());
  EXPECT_TRUE(Eventually([&] { return !IsRefused(host(1), kAlice); }));
  EXPECT_GT(host(1).fs->maintenance().GetSpace()->inodes_free, 0u);
  EXPECT_TRUE(Rename(host(1), "file", long_name, kAlice).ok());
}

TEST_F(ClusterMetadataRoomTest, NothingElseIsRefused) {
  const InodeId file = host(1).Put("file", "bytes");
  host(1).MakeDirectory("directory");
  auto open = host(1).Create("written");
  LeaveRoom(0);
  ASSERT_TRUE(Eventually([&] { return IsRefused(host(1), 0); }));
  EXPECT_TRUE(host(1).Write(open, 0, "more").ok());
  EXPECT_TRUE(host(1).CloseFile(open).ok());
  EXPECT_EQ(host(0).Cat("written"), "more");
  EXPECT_TRUE(Rename(host(1), "file", "renamed", kAlice).ok());
  EXPECT_TRUE(Rename(host(1), "renamed", "written", kAlice).ok());
  EXPECT_TRUE(host(1).fs->names().Rmdir({}, kRootInode, "directory").ok());
  EXPECT_TRUE(host(1).Unlink("written").ok());
  LoseSession(1);
  host(1).fs->names().Forget(file, 1);
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(file)); }));
}

TEST_F(ClusterMetadataRoomTest, NobodyWritesWhoMayMakeNoNames) {
  auto file = host(1).Create("file");
  LeaveRoom(reserve() / 10);
  ASSERT_TRUE(Eventually([&] { return host(1).fs->maintenance().GetSpace()->inodes_free == 0; }));
  auto request = host(1).RequestOf(file, 0, "bytes");
  request.caller = As(kAlice);
  EXPECT_TRUE(IsRefused(host(1).Send(std::move(request))));
  EXPECT_FALSE(IsRefused(host(1).Write(file, 0, "root's")));
  EXPECT_TRUE(host(1).CloseFile(file).ok());
}

TEST_F(ClusterMetadataRoomTest, OnlyRecordsThatGetNoLongerArePublishedOnceItIsGone) {
  const InodeId emptied = host(1).Put("emptied", TextOf(1, 100'000));
  host(1).Put("removed", "bytes");
  auto longer = host(1).Create("longer");
  // Several extents: their record takes more than the mark that goes with its publish.
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(host(1).Write(longer, i * 64 * kKiB, "accepted before").ok());
  LeaveNone();
  ASSERT_TRUE(Eventually([&] { return host(0).fs->maintenance().GetSpace()->inodes_free == 0; }));
  EXPECT_TRUE(IsRefused(host(1).Flush(longer)));
  EXPECT_TRUE(IsRefused(host(1).Flush(longer))) << "who closes it again is told again";
  EXPECT_EQ(host(0).Cat("longer"), "");
  EXPECT_TRUE(host(1).Truncate(emptied, 0).ok());
  auto again = host(1).Open("emptied");
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(host(1).CloseFile(*again).ok()) << "what others lack room for holds nobody up";
  EXPECT_EQ(host(0).Cat("emptied"), "");
  EXPECT_TRUE(host(1).Unlink("removed").ok());
  LeaveRoom(reserve());
  EXPECT_TRUE(Eventually([&] { return host(1).Flush(longer).ok(); }));
  EXPECT_TRUE(host(0).Cat("longer").starts_with("accepted before"));
  host(1).fs->open_files().Release(longer.handle);
}

TEST_F(ClusterMetadataRoomTest, WhoHasMostOfItLeavesTheLastQuarterToOthers) {
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Make(host(1), "alice" + std::to_string(i), kAlice, S_IFLNK).ok());
  ASSERT_TRUE(Make(host(0), "bob", kBob, S_IFLNK).ok());
  names_engine_->held_bytes = 50 * reserve();
  LeaveRoom(10 * reserve());
  EXPECT_TRUE(Eventually([&] { return IsRefused(host(1), kAlice); }));
  EXPECT_FALSE(IsRefused(host(1), kBob));
  EXPECT_FALSE(IsRefused(host(1), 0));
  EXPECT_FALSE(IsRefused(host(0), kBob));
}

TEST_F(ClusterMetadataRoomTest, NoneAreMadeOnceTheirHostStops) {
  EXPECT_TRUE(host(0).fs->Stop().ok());
  host(0).fs.reset();
  const Status made = Make(host(1), "late", 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnavailable) << made.error().message;
}

}  // namespace
}  // namespace cairnfs::fs
