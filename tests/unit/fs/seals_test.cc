// Seals on a host alone and among several: nobody has a file below open for writing, and nobody gets one.
#include "fs/seals.h"

#include <future>
#include <thread>

#include "cairnfs/cairnfs.h"
#include "cluster_fixture.h"
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

constexpr auto kSetSealed = meta::Namespace::XattrMode::kSet;
constexpr OpenFlags kForWriting{.read = true, .write = true}, kForReading{.read = true};

InodeId MakeSealable(FileSystem& fs, std::string_view name) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0755;
  auto made = fs.names().MakeNode({}, kRootInode, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

Status SealNow(FileSystem& fs, InodeId directory) {
  return World::Await<void>([&](Done<void> done) { fs.attributes().Seal({}, directory, std::move(done)); });
}

Status OpenAs(FileSystem& fs, InodeId file, const OpenFlags& flags) {
  const auto opened =
      World::Await<HandleId>([&](Done<HandleId> done) { fs.open_files().Open(file, flags, std::move(done), {}); });
  if (opened.ok()) fs.open_files().Release(*opened);
  return opened.ok() ? Status() : Status(opened.error());
}

Result<std::string> SealedOf(FileSystem& fs, InodeId inode) {
  return World::Await<std::string>(
      [&](Done<std::string> done) { fs.attributes().GetXattr(inode, CAIRNFS_XATTR_SEALED, std::move(done), {}); });
}

TEST(ChangeGate, WhoAwaitsChangesWaitsForThoseThatHadBegun) {
  const auto await = [](ChangeGate& gate) {
    return gate.AwaitBegun(Context().WithTimeout(std::chrono::milliseconds(1)));
  };
  const InodeId first{5}, second{6};
  ChangeGate gate;
  EXPECT_TRUE(gate.AwaitBegun({}).empty());
  auto old = gate.Begin(first);
  EXPECT_EQ(await(gate), std::vector{first});
  auto later = gate.Begin(second);
  old.reset();
  EXPECT_EQ(await(gate), std::vector{second});
  std::promise<std::vector<InodeId>> left;
  std::thread waiter([&] { left.set_value(gate.AwaitBegun({})); });
  later.reset();
  EXPECT_TRUE(left.get_future().get().empty());
  waiter.join();
}

TEST(Seals, NobodyOpensWhatIsSealedForWriting) {
  World world;
  const InodeId directory = MakeSealable(*world.fs, "dir");
  auto file = world.fs->open_files().Create({}, directory, "file", WithMode(S_IFREG | 0644), kForWriting);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(world.Write(*file, 0, "bytes").ok());
  const Status refused = SealNow(*world.fs, directory);
  ASSERT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_NE(refused.error().message.find("'dir/file' is open for writing"), std::string::npos)
      << refused.error().message;
  EXPECT_EQ(SealedOf(*world.fs, directory).error().code, ErrorCode::kNoData) << "as before";
  ASSERT_TRUE(world.Write(*file, 0, "BYTES").ok());
  world.CloseFile(*file);
  ASSERT_TRUE(SealNow(*world.fs, directory).ok());
  EXPECT_EQ(*SealedOf(*world.fs, directory), "1");
  EXPECT_EQ(*SealedOf(*world.fs, file->attr.inode), "below");
  EXPECT_EQ(OpenAs(*world.fs, file->attr.inode, kForWriting).error().code, ErrorCode::kSealed);
  EXPECT_EQ(OpenAs(*world.fs, file->attr.inode, {.read = true, .truncate = true}).error().code, ErrorCode::kSealed);
  EXPECT_TRUE(OpenAs(*world.fs, file->attr.inode, kForReading).ok());
  world.Reopen();
  EXPECT_EQ(OpenAs(*world.fs, file->attr.inode, kForWriting).error().code, ErrorCode::kSealed);
  ASSERT_TRUE(world.fs->attributes().RemoveXattr({}, directory, CAIRNFS_XATTR_SEALED).ok());
  EXPECT_TRUE(OpenAs(*world.fs, file->attr.inode, kForWriting).ok());
}

TEST(Seals, WhileItWaitsForAWriterNobodyIsHindered) {
  World world;
  const InodeId directory = MakeSealable(*world.fs, "dir");
  const auto make = [&](const std::string& name) {
    return world.fs->open_files().Create({}, directory, name, WithMode(S_IFREG | 0644), kForWriting);
  };
  const auto writer = make("file");
  ASSERT_TRUE(writer.ok());
  std::promise<Status> sealed;
  world.fs->attributes().Seal({}, directory, [&](const Status& status) { sealed.set_value(status); });
  const auto other = make("other");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(world.Write(*other, 0, "bytes").ok());
  world.CloseFile(*other);
  world.CloseFile(*writer);
  EXPECT_TRUE(sealed.get_future().get().ok());
  EXPECT_EQ(make("later").error().code, ErrorCode::kSealed);
}

TEST(Seals, OnlyTheDirectoryThatWasMeantIsSealed) {
  World world;
  const InodeId mine = MakeSealable(*world.fs, "mine"), other = MakeSealable(*world.fs, "other");
  meta::RenameParams params{kRootInode, "other", kRootInode, "other"};
  params.wants_seal = true;
  params.expected_from = mine;
  const Status sealed =
      World::Await<void>([&](Done<void> done) { world.fs->names().Rename(params, {}, std::move(done)); });
  EXPECT_EQ(sealed.error().code, ErrorCode::kStale);
  EXPECT_EQ(SealedOf(*world.fs, other).error().code, ErrorCode::kNoData);
}

TEST(Seals, ARenameSealsWhereItIsToldTo) {
  World world;
  const InodeId run = MakeSealable(*world.fs, "run");
  ASSERT_TRUE(world.fs->attributes().SetXattr({}, run, CAIRNFS_XATTR_SEALED, "commits", kSetSealed).ok());
  const InodeId step = MakeSealable(*world.fs, "step.tmp"), other = MakeSealable(*world.fs, "other.tmp");
  const auto rename = [&](const std::string& from, InodeId to, const std::string& name) {
    return World::Await<void>([&](Done<void> done) {
      world.fs->names().Rename({kRootInode, from, to, name}, {}, std::move(done));
    });
  };
  ASSERT_TRUE(rename("step.tmp", run, "step").ok());
  EXPECT_EQ(*SealedOf(*world.fs, step), "1");
  ASSERT_TRUE(rename("other.tmp", kRootInode, "elsewhere").ok());
  EXPECT_EQ(SealedOf(*world.fs, other).error().code, ErrorCode::kNoData);
  ASSERT_TRUE(world.fs->attributes().SetXattr({}, other, CAIRNFS_XATTR_SEALED, "at-commit", kSetSealed).ok());
  ASSERT_TRUE(rename("elsewhere", kRootInode, "final").ok());
  EXPECT_EQ(*SealedOf(*world.fs, other), "1");
  EXPECT_EQ(rename("final", kRootInode, "again").error().code, ErrorCode::kSealed);
}

TEST(Seals, AMetricOfWhatIsSealedMayBeSet) {
  World world;
  const InodeId directory = MakeSealable(*world.fs, "dir");
  ASSERT_TRUE(SealNow(*world.fs, directory).ok());
  const std::string metric = CAIRNFS_XATTR_METRIC_PREFIX "loss";
  Attributes& attributes = world.fs->attributes();
  EXPECT_TRUE(attributes.SetXattr({}, directory, metric, "1.5", kSetSealed).ok());
  EXPECT_TRUE(attributes.RemoveXattr({}, directory, metric).ok());
  EXPECT_TRUE(attributes.SetXattr({}, directory, "user.mine", "1", kSetSealed).error().code == ErrorCode::kSealed);
}

TEST(Seals, WhatADaemonThatEndedHasLeftIsOpenAgain) {
  World world;
  const InodeId directory = MakeSealable(*world.fs, "dir");
  ASSERT_TRUE(world.fs->attributes().SetXattr({}, directory, CAIRNFS_XATTR_SEALED, "at-commit", kSetSealed).ok());
  ASSERT_TRUE(world.names->MarkSealing({}, directory, meta::Namespace::SealFor::kCommit).ok());
  EXPECT_EQ(*SealedOf(*world.fs, directory), "sealing");
  // A commit that is tried again says so again.
  EXPECT_TRUE(world.fs->attributes().SetXattr({}, directory, CAIRNFS_XATTR_SEALED, "at-commit", kSetSealed).ok());
  world.Reopen();
  EXPECT_EQ(*SealedOf(*world.fs, directory), "at-commit");
  EXPECT_TRUE(world.fs->open_files().Create({}, directory, "file", WithMode(S_IFREG | 0644), kForWriting).ok());
}

class ClusterSeals : public ClusterTest {
 protected:
  Status SealOn(size_t number, InodeId directory) {
    return host(number).Await<void>(
        [&](Done<void> done) { host(number).fs->attributes().Seal({}, directory, std::move(done)); });
  }
};

TEST_F(ClusterSeals, AWriterOnAnotherHostIsNamed) {
  MakeHosts(3);
  const InodeId directory = host(0).MakeDirectory("dir");
  host(1).Put("file", "content", directory);
  const InodeId file = host(0).fs->names().Lookup({}, directory, "file")->inode;
  const auto opened = host(1).OpenInode(file);
  ASSERT_TRUE(opened.ok());
  const Status refused = SealOn(0, directory);
  ASSERT_EQ(refused.error().code, ErrorCode::kBusy) << refused.error().message;
  EXPECT_NE(refused.error().message.find("'dir/file' is open for writing"), std::string::npos);
  EXPECT_NE(refused.error().message.find("host"), std::string::npos) << refused.error().message;
  host(1).fs->open_files().Release(*opened);
  ASSERT_TRUE(SealOn(0, directory).ok());
  // Each had seen by its opens that there is no seal.
  for (size_t number = 0; number < 3; number++) {
    EXPECT_EQ(host(number).OpenInode(file).error().code, ErrorCode::kSealed) << number;
    EXPECT_TRUE(host(number).OpenInode(file, {.read = true}).ok()) << number;
    EXPECT_EQ(host(number).fs->names().Unlink({}, directory, "file").error().code, ErrorCode::kSealed) << number;
  }
  ASSERT_TRUE(host(2).fs->attributes().RemoveXattr({}, directory, CAIRNFS_XATTR_SEALED).ok());
  EXPECT_TRUE(host(1).OpenInode(file).ok());
}

// Its close waited for nothing, so a seal would come before its bytes.
TEST_F(ClusterSeals, WhatAnotherHostIsYetToPublishCountsAsWritten) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  auto file = host(1).Create("file", directory);
  ASSERT_TRUE(host(1).Write(file, 0, TextOf(1, 50'000)).ok());
  host(1).chunks->HangSyncs();
  host(1).fs->open_files().Release(file.handle);
  const Status refused = SealOn(0, directory);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy) << refused.error().message;
  ASSERT_TRUE(Eventually([&] { return host(1).chunks->hanging_syncs() > 0; })) << "a round was asked for";
  host(1).chunks->LetSyncsGo();
  ASSERT_TRUE(Eventually([&] { return SealOn(0, directory).ok(); }));
  EXPECT_EQ(host(0).fs->names().Lookup({}, directory, "file")->size, 50'000u);
}

TEST_F(ClusterSeals, ItsEndCountsOnOtherHostsAlsoForASecondName) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  host(0).Put("file", "content", directory);
  const InodeId file = host(0).fs->names().Lookup({}, directory, "file")->inode;
  ASSERT_TRUE(host(0).names->Link({}, file, kRootInode, "second").ok());
  ASSERT_TRUE(SealOn(0, directory).ok());
  EXPECT_EQ(host(1).OpenInode(file).error().code, ErrorCode::kSealed);
  ASSERT_TRUE(host(0).fs->attributes().RemoveXattr({}, directory, CAIRNFS_XATTR_SEALED).ok());
  const auto opened = host(1).OpenInode(file);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  host(1).fs->open_files().Release(*opened);
}

TEST_F(ClusterSeals, AHostThatDoesNotAnswerRefusesIt) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  board_.silent.insert(host(1).membership->self());
  EXPECT_EQ(SealOn(0, directory).error().code, ErrorCode::kUnavailable);
  board_.silent.clear();
  EXPECT_TRUE(SealOn(0, directory).ok());
}

// Of one that was killed nobody knows that until its session ends.
TEST_F(ClusterSeals, AHostThatHasDiedIsWaitedForAndRefusesNothing) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  board_.silent.insert(host(1).membership->self());
  auto sealed = std::async(std::launch::async, [&] { return SealOn(0, directory); });
  ASSERT_TRUE(Eventually([&] { return board_.open_calls > 0; }));
  host(1).Die();
  const Status status = sealed.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace
}  // namespace cairnfs::fs
