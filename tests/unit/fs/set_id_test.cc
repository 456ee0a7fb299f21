// What a stranger's change takes away from a file, and what the kernel may execute (docs/decisions/set-id.md).
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

constexpr char kCapability[] = "security.capability";

class SetIdTest : public ::testing::Test {
 protected:
  Caller Stranger(std::vector<uint32_t> groups = {}) {
    Caller caller;
    caller.uid = caller.gid = 12345;
    caller.pid = 77;
    caller.is_in_group = [groups](uint32_t gid) {
      return std::find(groups.begin(), groups.end(), gid) != groups.end();
    };
    return caller;
  }
  Status Chmod(const FileSystem::Created& file, uint32_t mode) {
    SetAttrRequest request;
    request.mode = mode;
    auto set = World::Await<meta::Attr>(
        [&](Done<meta::Attr> done) { world.fs->attributes().SetAttr(file.attr.inode, request, std::move(done)); });
    if (!set.ok()) return set.error();
    world.fs->attributes().NoteReply(*set);  // the answer
    return {};
  }
  uint32_t ModeOf(const FileSystem::Created& file) {
    return world.fs->names().GetAttr({}, file.attr.inode)->mode & 07777;
  }
  Status WriteAs(const Caller& caller, const FileSystem::Created& file) {
    FileSystem::WriteRequest request;
    request.handle = file.handle;
    request.inode = file.attr.inode;
    request.kill_suid_sgid = true;
    request.caller = caller;
    request.data = SliceOf(*world.pool, "evil");
    auto written =
        World::Await<size_t>([&](Done<size_t> done) { world.fs->writer().Write(std::move(request), std::move(done)); });
    return written.ok() ? Status() : Status(written.error());
  }
  Result<HandleId> Open(const FileSystem::Created& file, const OpenFlags& flags, const Caller& caller) {
    return World::Await<HandleId>(
        [&](Done<HandleId> done) { world.fs->open_files().Open(file.attr.inode, flags, std::move(done), caller); });
  }
  Result<HandleId> OpenForExec(const FileSystem::Created& file, uint32_t pid = 77) {
    Caller caller = Stranger();
    caller.pid = pid;
    return Open(file, {.read = true, .executes = true}, caller);
  }
  static ErrorCode CodeOf(const Result<HandleId>& opened) {
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? ErrorCode{} : opened.error().code;
  }
  // A set-user-id program whose mode the kernel knows, after a stranger wrote to it and closed it.
  FileSystem::Created Overwritten() {
    FileSystem::Created file = world.Create("program");
    EXPECT_TRUE(Chmod(file, 04777).ok());
    EXPECT_TRUE(WriteAs(Stranger(), file).ok());
    EXPECT_EQ(ModeOf(file), 0777U);
    world.CloseFile(file);
    return file;
  }

  World world;
};

TEST_F(SetIdTest, GoesAsOnExt4) {
  struct Row {
    uint32_t before, by_stranger, by_member;
  };
  for (const Row& row : {Row{04777, 0777, 0777}, Row{02777, 0777, 0777}, Row{06755, 0755, 0755},
                         Row{02666, 0666, 02666}, Row{0644, 0644, 0644}}) {
    const FileSystem::Created file = world.Create("file" + std::to_string(row.before));
    ASSERT_TRUE(Chmod(file, row.before).ok());
    ASSERT_TRUE(WriteAs(Stranger({file.attr.gid}), file).ok());
    EXPECT_EQ(ModeOf(file), row.by_member) << std::oct << row.before;
    ASSERT_TRUE(Chmod(file, row.before).ok());
    ASSERT_TRUE(WriteAs(Stranger(), file).ok());
    EXPECT_EQ(ModeOf(file), row.by_stranger) << std::oct << row.before;
  }
}

TEST_F(SetIdTest, GoesByCallsOfWhichTheKernelDoesNotTellWhoKeepsIt) {
  const FileSystem::Created file = world.Create("file"), other = world.Create("other");
  ASSERT_TRUE(world.Write(other, 0, "bytes").ok());
  auto allocate = [&](const Caller& caller) {
    return World::Await<void>([&](Done<void> done) {
      world.fs->writer().Fallocate(file.handle, {.offset = 0, .length = 9}, std::move(done), caller);
    });
  };
  auto copy = [&](const Caller& caller) {
    return World::Await<size_t>([&](Done<size_t> done) {
      world.fs->writer().CopyRange({other.handle, 0, file.handle, 0, 5}, std::move(done), caller);
    });
  };
  ASSERT_TRUE(Chmod(file, 04777).ok());
  ASSERT_TRUE(allocate({}).ok());
  ASSERT_TRUE(copy({}).ok());
  EXPECT_EQ(ModeOf(file), 04777U);  // root's
  ASSERT_TRUE(allocate(Stranger()).ok());
  EXPECT_EQ(ModeOf(file), 0777U);
  ASSERT_TRUE(Chmod(file, 04777).ok());
  ASSERT_TRUE(copy(Stranger()).ok());
  EXPECT_EQ(ModeOf(file), 0777U);
  ASSERT_TRUE(Chmod(file, 04777).ok());
  ASSERT_TRUE(world.WriteBackPages(file, 0, "mapped").ok());
  EXPECT_EQ(ModeOf(file), 0777U);
}

// The kernel writes pages back as root, who is in every group.
TEST_F(SetIdTest, WhoStoresThroughAMappingIsInNoGroup) {
  const FileSystem::Created file = world.Create("file");
  ASSERT_TRUE(Chmod(file, 02666).ok());
  Caller root;
  root.is_in_group = [](uint32_t) { return true; };
  ASSERT_TRUE(world.WriteBackPages(file, 0, "mapped", root).ok());
  EXPECT_EQ(ModeOf(file), 0666U);
}

TEST_F(SetIdTest, ItAndCapabilitiesGoEachTimeTheyAreGiven) {
  const FileSystem::Created file = world.Create("file");
  for (int i = 0; i < 3; i++) {
    ASSERT_TRUE(Chmod(file, 04777).ok());
    ASSERT_TRUE(world.fs->attributes()
                    .SetXattr({}, file.attr.inode, kCapability, "caps", meta::Namespace::XattrMode::kSet)
                    .ok());
    ASSERT_TRUE(WriteAs(Stranger(), file).ok());
    EXPECT_EQ(ModeOf(file), 0777U);
    EXPECT_TRUE(world.fs->attributes().ListXattrs({}, file.attr.inode)->empty());
  }
  ASSERT_TRUE(
      world.fs->attributes().SetXattr({}, file.attr.inode, kCapability, "caps", meta::Namespace::XattrMode::kSet).ok());
  ASSERT_TRUE(Open(file, {.write = true, .truncate = true}, {}).ok());
  EXPECT_TRUE(world.fs->attributes().ListXattrs({}, file.attr.inode)->empty());
}

TEST_F(SetIdTest, TheKernelKeepsNoModeWithItsBits) {
  const FileSystem::Created file = world.Create("file");
  EXPECT_TRUE(world.fs->attributes().NoteReply(*world.fs->names().GetAttr({}, file.attr.inode)));
  ASSERT_TRUE(Chmod(file, 04777).ok());
  EXPECT_FALSE(world.fs->attributes().NoteReply(*world.fs->names().GetAttr({}, file.attr.inode)));
  ASSERT_TRUE(WriteAs(Stranger(), file).ok());
  // It may not have taken the new one: so it goes on asking.
  EXPECT_FALSE(world.fs->attributes().NoteReply(*world.fs->names().GetAttr({}, file.attr.inode)));
}

TEST_F(SetIdTest, AProgramRunsWithTheBitsItHas) {
  const FileSystem::Created file = world.Create("program");
  ASSERT_TRUE(Chmod(file, 04777).ok());
  EXPECT_TRUE(OpenForExec(file).ok());
}

TEST_F(SetIdTest, AfterAStrangersWriteAThreadExecutesOnceItHasAskedAgain) {
  const FileSystem::Created file = Overwritten();
  EXPECT_TRUE(Open(file, {.read = true}, Stranger()).ok());  // who only reads is not concerned
  EXPECT_EQ(CodeOf(OpenForExec(file, 1)), ErrorCode::kStale);
  EXPECT_EQ(CodeOf(OpenForExec(file, 2)), ErrorCode::kStale);  // another thread: it may have asked before the write
  EXPECT_TRUE(OpenForExec(file, 1).ok());
  EXPECT_TRUE(OpenForExec(file, 3).ok());  // the kernel knows the mode
}

TEST_F(SetIdTest, NothingIsExecutedWhileAWriterMayHideTheModeFromTheKernel) {
  const FileSystem::Created file = Overwritten();
  EXPECT_EQ(CodeOf(OpenForExec(file)), ErrorCode::kStale);
  auto writer = Open(file, {.write = true}, Stranger());
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(CodeOf(OpenForExec(file)), ErrorCode::kBusy);
  world.fs->open_files().Release(*writer);
  EXPECT_EQ(CodeOf(OpenForExec(file)), ErrorCode::kStale);  // what it asked before does not count
  EXPECT_TRUE(OpenForExec(file).ok());
}

TEST_F(SetIdTest, ANameThatIsRemovedMayHideTheModeUntilTheNextChmod) {
  const FileSystem::Created file = world.Create("program");
  auto linked = World::Await<meta::Attr>(
      [&](Done<meta::Attr> done) { world.fs->names().Link(file.attr.inode, kRootInode, "other", std::move(done)); });
  ASSERT_TRUE(linked.ok());
  ASSERT_TRUE(Chmod(file, 04777).ok());
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "other").ok());
  ASSERT_TRUE(WriteAs(Stranger(), file).ok());
  world.CloseFile(file);
  EXPECT_EQ(CodeOf(OpenForExec(file)), ErrorCode::kBusy);
  ASSERT_TRUE(Chmod(file, 0755).ok());
  EXPECT_EQ(CodeOf(OpenForExec(file)), ErrorCode::kStale);
  EXPECT_TRUE(OpenForExec(file).ok());
}

TEST_F(SetIdTest, AProgramThatIsOverwrittenWhileItIsOpenedIsNotRead) {
  const FileSystem::Created file = world.Create("program");
  ASSERT_TRUE(world.Write(file, 0, "good").ok());
  ASSERT_TRUE(Chmod(file, 04777).ok());
  auto program = OpenForExec(file);
  ASSERT_TRUE(program.ok());
  const FileSystem::Created opened{file.attr, *program};
  EXPECT_TRUE(world.Read(opened, 0, 4).ok());
  ASSERT_TRUE(WriteAs(Stranger(), file).ok());
  auto read = world.Read(opened, 0, 4);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kBusy);
  EXPECT_EQ(*world.Read(file, 0, 4), "evil");
}

}  // namespace
}  // namespace cairnfs::fs
