// The attributes of retention, on a host alone and among several.
#include "cairnfs/cairnfs.h"
#include "cluster_fixture.h"
#include "fixture.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr auto kSetXattr = meta::Namespace::XattrMode::kSet;
constexpr uint32_t kOwner = 1000, kStranger = 1001;
const std::string kGoing = ".cairnfs-going-abcdefghijklmnop";

Caller By(uint32_t uid) {
  Caller caller;
  caller.uid = uid;
  return caller;
}

InodeId MakeOwned(FileSystem& fs, std::string_view name) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0777;
  params.uid = kOwner;
  auto made = fs.names().MakeNode({}, kRootInode, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

Status SetAs(FileSystem& fs, uint32_t uid, InodeId inode, std::string_view name, std::string_view value) {
  return fs.attributes().SetXattr(By(uid), inode, name, value, kSetXattr);
}

Result<std::string> GetAs(FileSystem& fs, uint32_t uid, InodeId inode, std::string_view name) {
  return World::Await<std::string>(
      [&](Done<std::string> done) { fs.attributes().GetXattr(inode, name, std::move(done), By(uid)); });
}

Status MoveIn(FileSystem& fs, const std::string& from, const std::string& to) {
  meta::RenameParams params{kRootInode, from, kRootInode, to};
  return World::Await<void>([&](Done<void> done) { fs.names().Rename(params, {}, std::move(done)); });
}

std::string InSeconds(int64_t seconds) { return std::to_string(Clock::WallTime().seconds + seconds); }

TEST(KeepingTest, OnlyTheOwnerAndRootSetIt) {
  World world;
  const InodeId run = MakeOwned(*world.fs, "run");
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{CAIRNFS_XATTR_PINNED, "1"},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, InSeconds(100)},
                                                        {CAIRNFS_XATTR_METRIC_PREFIX "loss", "0.5"},
                                                        {CAIRNFS_XATTR_RETAIN, R"({"keep_last":2})"}}) {
    EXPECT_EQ(GetAs(*world.fs, kOwner, run, name).error().code, ErrorCode::kNoData);
    EXPECT_EQ(SetAs(*world.fs, kStranger, run, name, value).error().code, ErrorCode::kPermission);
    EXPECT_EQ(SetAs(*world.fs, kOwner, run, name, "wrong").error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(SetAs(*world.fs, 0, kRootInode, name, value).error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(SetAs(*world.fs, kOwner, run, name, value).ok()) << name;
    EXPECT_EQ(*GetAs(*world.fs, kStranger, run, name), value);
    EXPECT_TRUE(world.fs->attributes().ListXattrs({}, run)->empty());
    world.Reopen();
    EXPECT_EQ(*GetAs(*world.fs, kOwner, run, name), value);
    EXPECT_EQ(world.fs->attributes().RemoveXattr(By(kStranger), run, name).error().code, ErrorCode::kPermission);
    ASSERT_TRUE(world.fs->attributes().RemoveXattr(By(0), run, name).ok());
    EXPECT_EQ(world.fs->attributes().RemoveXattr(By(0), run, name).error().code, ErrorCode::kNoData);
  }
  const auto file = world.Create("file", kOwner);
  EXPECT_EQ(SetAs(*world.fs, kOwner, file.attr.inode, CAIRNFS_XATTR_PINNED, "1").error().code,
            ErrorCode::kNotDirectory);
  world.CloseFile(file);
  for (const char* name :
       {CAIRNFS_XATTR_OPEN_FILES, CAIRNFS_XATTR_COMMIT, "user.cairnfs.metric.", "user.cairnfs.other"}) {
    EXPECT_EQ(SetAs(*world.fs, 0, run, name, "1").error().code, ErrorCode::kPermission) << name;
  }
}

TEST(KeepingTest, AHoldIsNotShortened) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1");
  const std::string longer = InSeconds(1000);
  ASSERT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL, longer).ok());
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL, InSeconds(10)).error().code,
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(*GetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL), longer);
  EXPECT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL, InSeconds(2000)).ok());
}

void TryRenames(FileSystem& fs, FileSystem& by) {
  const InodeId step = MakeOwned(fs, "step-1");
  ASSERT_TRUE(SetAs(fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").ok());
  EXPECT_EQ(MoveIn(by, "step-1", kGoing).error().code, ErrorCode::kBusy);
  ASSERT_TRUE(MoveIn(by, "step-1", "step-2").ok()) << "other names are as ever";
  ASSERT_TRUE(fs.attributes().RemoveXattr(By(kOwner), step, CAIRNFS_XATTR_PINNED).ok());
  ASSERT_TRUE(SetAs(fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL, InSeconds(5)).ok());
  EXPECT_EQ(MoveIn(by, "step-2", kGoing).error().code, ErrorCode::kBusy);
  Clock::SleepFor(std::chrono::seconds(6));
  EXPECT_TRUE(MoveIn(by, "step-2", kGoing).ok());
}

TEST(KeepingTest, NamesOfWhatGoesMakeNoCommit) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1");
  ASSERT_TRUE(MoveIn(*world.fs, "step-1", kGoing).ok());
  EXPECT_EQ(GetAs(*world.fs, 0, step, CAIRNFS_XATTR_COMMIT).error().code, ErrorCode::kNoData);
  ASSERT_TRUE(MoveIn(*world.fs, kGoing, "step-1").ok());
  EXPECT_EQ(GetAs(*world.fs, 0, step, CAIRNFS_XATTR_COMMIT).error().code, ErrorCode::kNoData);
}

TEST(KeepingTest, WhatIsPinnedOrHeldDoesNotGo) {
  World world;
  TryRenames(*world.fs, *world.fs);
}

using ClusterKeepingTest = ClusterTest;

TEST_F(ClusterKeepingTest, NorByAnotherHost) {
  MakeHosts(2);
  TryRenames(*host(0).fs, *host(1).fs);
}

TEST(KeepingTest, NorByAnExchange) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1");
  MakeOwned(*world.fs, kGoing);
  ASSERT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").ok());
  meta::RenameParams swap{kRootInode, kGoing, kRootInode, "step-1", meta::RenameMode::kExchange};
  EXPECT_EQ(
      World::Await<void>([&](Done<void> done) { world.fs->names().Rename(swap, {}, std::move(done)); }).error().code,
      ErrorCode::kInvalidArgument);
}

TEST(KeepingTest, WhatIsBeingRemovedDoesNotComeBack) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1");
  ASSERT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").ok());
  const auto begin = [&](uint32_t uid) { return SetAs(*world.fs, uid, step, CAIRNFS_XATTR_REMOVING, kGoing); };
  const auto unpin = [&] { return world.fs->attributes().RemoveXattr(By(kOwner), step, CAIRNFS_XATTR_PINNED); };
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_REMOVING, "1").error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(begin(kOwner).error().code, ErrorCode::kNotFound) << "it has its own name";
  ASSERT_TRUE(unpin().ok());
  ASSERT_TRUE(MoveIn(*world.fs, "step-1", kGoing).ok());
  EXPECT_EQ(begin(kStranger).error().code, ErrorCode::kPermission);
  ASSERT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").ok());
  EXPECT_EQ(begin(kOwner).error().code, ErrorCode::kBusy);
  ASSERT_TRUE(MoveIn(*world.fs, kGoing, "step-1").ok()) << "its removal has not begun";
  ASSERT_TRUE(unpin().ok());
  EXPECT_EQ(begin(kOwner).error().code, ErrorCode::kNotFound) << "whoever renamed it comes late";
  ASSERT_TRUE(MoveIn(*world.fs, "step-1", kGoing).ok());
  ASSERT_TRUE(begin(kOwner).ok());
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").error().code, ErrorCode::kBusy);
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_HELD_UNTIL, "4000000000").error().code, ErrorCode::kBusy);
  EXPECT_EQ(MoveIn(*world.fs, kGoing, "step-1").error().code, ErrorCode::kBusy);
  for (const uint32_t uid : {kOwner, 0U}) {
    const auto taken_away = world.fs->attributes().RemoveXattr(By(uid), step, CAIRNFS_XATTR_REMOVING);
    EXPECT_EQ(taken_away.error().code, ErrorCode::kBusy) << uid;
  }
  EXPECT_TRUE(world.fs->names().Rmdir({}, kRootInode, kGoing).ok());
}

// Once nothing else is left in it, that comes back under its own name, and is no checkpoint.
TEST(KeepingTest, WhatStaysInsideComesBackWithTheMark) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1.tmp");
  ASSERT_TRUE(MoveIn(*world.fs, "step-1.tmp", "step-1").ok());
  ASSERT_TRUE(GetAs(*world.fs, 0, step, CAIRNFS_XATTR_COMMIT).ok());
  const std::string going = retention::GoingName("abcdefghijklmnop", "step-1"), mark = going + "/train_ds*";
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_REMOVING, going + "/a/").error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_REMOVING, mark).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(MoveIn(*world.fs, "step-1", going).ok());
  ASSERT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_REMOVING, mark).ok());
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_REMOVING, going).error().code, ErrorCode::kBusy)
      << "another removal keeps nothing";
  EXPECT_EQ(GetAs(*world.fs, 0, step, CAIRNFS_XATTR_COMMIT).error().code, ErrorCode::kNoData);
  EXPECT_EQ(MoveIn(*world.fs, going, "step-2").error().code, ErrorCode::kBusy) << "it has another name";
  EXPECT_EQ(MoveIn(*world.fs, going, kGoing).error().code, ErrorCode::kBusy);
  EXPECT_EQ(world.fs->attributes().RemoveXattr(By(kOwner), step, CAIRNFS_XATTR_REMOVING).error().code,
            ErrorCode::kBusy);
  ASSERT_TRUE(MoveIn(*world.fs, going, "step-1").ok());
  EXPECT_EQ(GetAs(*world.fs, 0, step, CAIRNFS_XATTR_COMMIT).error().code, ErrorCode::kNoData);
  EXPECT_EQ(*GetAs(*world.fs, 0, step, CAIRNFS_XATTR_REMOVING), mark);
  EXPECT_EQ(MoveIn(*world.fs, "step-1", kGoing).error().code, ErrorCode::kBusy) << "another removal's judgement is old";
  EXPECT_EQ(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").error().code, ErrorCode::kBusy);
  // Its owner may make it a checkpoint like others.
  EXPECT_EQ(world.fs->attributes().RemoveXattr(By(kStranger), step, CAIRNFS_XATTR_REMOVING).error().code,
            ErrorCode::kPermission);
  ASSERT_TRUE(world.fs->attributes().RemoveXattr(By(kOwner), step, CAIRNFS_XATTR_REMOVING).ok());
  EXPECT_TRUE(SetAs(*world.fs, kOwner, step, CAIRNFS_XATTR_PINNED, "1").ok());
}

TEST(KeepingTest, OpenFilesBelowAreCounted) {
  World world;
  const InodeId step = MakeOwned(*world.fs, "step-1"), other = MakeOwned(*world.fs, "other");
  auto deep = world.fs->names().MakeNode({}, step, "deep", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(deep.ok());
  const auto open_in = [&](InodeId directory, const char* name) {
    auto made =
        world.fs->open_files().Create({}, directory, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
    EXPECT_TRUE(made.ok());
    return *made;
  };
  const auto count = [&](InodeId directory) {
    const auto text = GetAs(*world.fs, kOwner, directory, CAIRNFS_XATTR_OPEN_FILES);
    return text.ok() ? *text : text.error().message;
  };
  EXPECT_EQ(count(step), "0");
  const auto first = open_in(deep->inode, "first"), second = open_in(step, "second"), beside = open_in(other, "beside");
  EXPECT_EQ(count(step), "2");
  EXPECT_EQ(count(other), "1");
  EXPECT_EQ(GetAs(*world.fs, kStranger, step, CAIRNFS_XATTR_OPEN_FILES).error().code, ErrorCode::kPermission);
  EXPECT_EQ(GetAs(*world.fs, 0, first.attr.inode, CAIRNFS_XATTR_OPEN_FILES).error().code, ErrorCode::kNotDirectory);
  world.CloseFile(first);
  EXPECT_EQ(count(step), "1");
  ASSERT_TRUE(world.fs->names().Unlink({}, step, "second").ok());
  EXPECT_EQ(count(step), "0") << "it lies nowhere any more";
  world.CloseFile(second);
  meta::RenameParams into{other, "beside", deep->inode, "beside"};
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->names().Rename(into, {}, std::move(done)); }).ok());
  EXPECT_EQ(count(step) + " " + count(other), "1 0") << "it counts where it lies now";
  world.CloseFile(beside);
}

}  // namespace
}  // namespace cairnfs::fs
