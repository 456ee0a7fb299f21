// rename(2): what may replace what, exchange, cycles, and whose times change.
#include <csignal>

#include "base/failpoint.h"
#include "fixture.h"

namespace cairnfs::meta {
namespace {

class RenameTest : public NamespaceTest {
 protected:
  void SetUp() override {
    NamespaceTest::SetUp();
    a_ = MakeDirectory(kRootInode, "a");
    b_ = MakeDirectory(kRootInode, "b");
  }
  InodeId Find(InodeId parent, std::string_view name) {
    auto attr = names().Lookup({}, parent, name);
    return attr.ok() ? attr->inode : InodeId{};
  }
  uint64_t MoveRevision() { return (*local_->Get({}, MoveKey()))->revision; }

  InodeId a_, b_;
};

TEST_F(RenameTest, FileToANewName) {
  const InodeId file = MakeFile(a_, "old");
  const Attr before = AttrNow(file);
  auto result = Move(a_, "old", b_, "new");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->moved, file);
  EXPECT_EQ(result->moved_type, uint32_t{S_IFREG});
  EXPECT_FALSE(result->replaced);
  EXPECT_FALSE(result->exchanged);
  EXPECT_FALSE(result->unchanged);
  EXPECT_EQ(Find(b_, "new"), file);
  EXPECT_EQ(Find(a_, "old"), InodeId{});
  const Attr after = AttrNow(file);
  EXPECT_GT(after.ctime, before.ctime);
  EXPECT_EQ(after.mtime, before.mtime);
  EXPECT_EQ(after.atime, before.atime);
  EXPECT_EQ(after.nlink, 1u);
  for (InodeId parent : {a_, b_}) {
    EXPECT_EQ(AttrNow(parent).mtime, after.ctime);
    EXPECT_EQ(AttrNow(parent).ctime, after.ctime);
  }
}

TEST_F(RenameTest, AFileWithoutANameGetsOne) {
  CreateParams params;
  params.mode = S_IFREG | 0640;
  params.without_name = true;
  params.owner = CreateParams::Owner{7, 8};
  auto made = names().Create({}, a_, "file", params);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->nlink, 0u);
  EXPECT_EQ(made->uid, 7u);
  EXPECT_EQ(made->gid, 8u);
  EXPECT_EQ(Find(a_, "file"), InodeId{});
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{made->inode});
  const InodeId old = MakeFile(a_, "file");
  std::optional<RenameParams::Target> asked;
  RenameParams take{a_, "file", a_, "file"};
  take.unnamed = made->inode;
  take.may_take = [](const auto&) { return MakeError(ErrorCode::kPermission, "no"); };
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kPermission);
  EXPECT_EQ(Find(a_, "file"), old);
  take.may_take = [&](const auto& target) {
    asked = target;
    return Status();
  };
  // Also where something comes in between.
  store_->conflicts = 1;
  auto taken = names().Rename({}, take);
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(taken->moved, made->inode);
  ASSERT_TRUE(taken->replaced);
  EXPECT_EQ(taken->replaced->inode, old);
  EXPECT_EQ(taken->replaced->nlink, 0u);
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->inode, old);
  EXPECT_EQ(Find(a_, "file"), made->inode);
  EXPECT_EQ(AttrNow(made->inode).nlink, 1u);
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{old});
  EXPECT_OK(names().RemoveOrphans({}, {old, made->inode}));
  EXPECT_EQ(Find(a_, "file"), made->inode);
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kAlreadyExists);  // it has a name
}

TEST_F(RenameTest, AFileWithoutANameThatGetsNone) {
  CreateParams params;
  params.mode = S_IFREG | 0640;
  params.without_name = true;
  auto made = names().Create({}, a_, "file", params);
  ASSERT_TRUE(made.ok());
  RenameParams take{a_, "file", a_, "file"};
  take.unnamed = made->inode;
  MakeDirectory(a_, "file");
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kIsDirectory);
  EXPECT_OK(names().Rmdir({}, a_, "file"));
  EXPECT_OK(names().Rmdir({}, kRootInode, "a"));
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kNotFound);
  EXPECT_OK(names().RemoveOrphans({}, {made->inode}));
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kNotFound);
  take.unnamed = b_;
  EXPECT_CODE(names().Rename({}, take), ErrorCode::kInvalidArgument);
}

TEST_F(RenameTest, NothingThere) {
  EXPECT_CODE(Move(a_, "none", b_, "x"), ErrorCode::kNotFound);
  MakeFile(a_, "file");
  EXPECT_CODE(Move(a_, "file", InodeId{999}, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(Move(a_, "file", Find(a_, "file"), "x"), ErrorCode::kNotDirectory);
  EXPECT_CODE(Move(Find(a_, "file"), "x", a_, "x"), ErrorCode::kNotDirectory);
  EXPECT_CODE(Move(a_, "file", b_, "none", RenameMode::kExchange), ErrorCode::kNotFound);
  EXPECT_CODE(Move(a_, "file", b_, std::string(256, 'x')), ErrorCode::kNameTooLong);
  EXPECT_CODE(Move(a_, std::string(256, 'x'), b_, "file"), ErrorCode::kNameTooLong);
}

TEST_F(RenameTest, FileOverFile) {
  const InodeId file = MakeFile(a_, "new");
  const InodeId old = MakeFile(b_, "target");
  FileRecord record;
  record.size = 77;
  PutFile(old, record);
  EXPECT_OK(names().Link({}, old, a_, "also"));
  auto result = Move(a_, "new", b_, "target");
  ASSERT_TRUE(result.ok());
  ASSERT_TRUE(result->replaced);
  EXPECT_EQ(result->replaced->inode, old);
  EXPECT_EQ(result->replaced->nlink, 1u);
  EXPECT_EQ(result->replaced->size, 77u);
  EXPECT_EQ(AttrNow(old).ctime, AttrNow(file).ctime);
  EXPECT_TRUE(names().ListOrphans({})->empty());
  MakeFile(a_, "newer");
  result = Move(a_, "newer", a_, "also");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->replaced->nlink, 0u);
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{old});
}

TEST_F(RenameTest, WhatMayReplaceWhat) {
  MakeFile(kRootInode, "file");
  MakeDirectory(kRootInode, "empty");
  const InodeId full = MakeDirectory(kRootInode, "full");
  MakeFile(full, "inside");
  MakeDirectory(kRootInode, "directory");
  EXPECT_CODE(Move(kRootInode, "file", kRootInode, "empty"), ErrorCode::kIsDirectory);
  EXPECT_CODE(Move(kRootInode, "file", kRootInode, "full"), ErrorCode::kIsDirectory);
  EXPECT_CODE(Move(kRootInode, "directory", kRootInode, "file"), ErrorCode::kNotDirectory);
  EXPECT_CODE(Move(kRootInode, "directory", kRootInode, "full"), ErrorCode::kNotEmpty);
  EXPECT_CODE(Move(full, "inside", kRootInode, "full"), ErrorCode::kIsDirectory);
  for (std::string_view target : {"file", "empty", "full", "directory"}) {
    EXPECT_CODE(Move(kRootInode, "directory", kRootInode, target, RenameMode::kNoReplace), ErrorCode::kAlreadyExists);
  }
  const InodeId empty = Find(kRootInode, "empty");
  auto result = Move(kRootInode, "full", kRootInode, "empty");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->moved_type, uint32_t{S_IFDIR});
  EXPECT_EQ(result->replaced->inode, empty);
  EXPECT_EQ(result->replaced->nlink, 0u);
  EXPECT_EQ(Find(kRootInode, "empty"), full);
  EXPECT_EQ(Names(full), std::vector<std::string>{"inside"});
  CreateParams params;
  params.mode = S_IFREG | 0644;
  EXPECT_CODE(names().Create({}, empty, "x", params), ErrorCode::kNotFound);
  MakeDirectory(full, "below");
  EXPECT_CODE(Move(full, "below", kRootInode, "empty"), ErrorCode::kNotEmpty) << "its own parent";
}

TEST_F(RenameTest, LinksToOneFileStay) {
  const InodeId file = MakeFile(a_, "one");
  EXPECT_OK(names().Link({}, file, b_, "two"));
  const Attr before = AttrNow(file);
  for (RenameMode mode : {RenameMode::kReplace, RenameMode::kExchange}) {
    auto result = Move(a_, "one", b_, "two", mode);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(result->unchanged);
    result = Move(a_, "one", a_, "one", mode);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(result->unchanged);
    result = Move(kRootInode, "a", kRootInode, "a", mode);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(result->unchanged);
  }
  EXPECT_CODE(Move(a_, "one", b_, "two", RenameMode::kNoReplace), ErrorCode::kAlreadyExists);
  EXPECT_CODE(Move(a_, "one", a_, "one", RenameMode::kNoReplace), ErrorCode::kAlreadyExists);
  EXPECT_EQ(AttrNow(file).ctime, before.ctime);
  EXPECT_EQ(AttrNow(file).nlink, 2u);
  EXPECT_EQ(Find(a_, "one"), file);
  EXPECT_EQ(Find(b_, "two"), file);
}

TEST_F(RenameTest, NoReplaceToANewName) {
  const InodeId file = MakeFile(a_, "one");
  EXPECT_OK(Move(a_, "one", b_, "two", RenameMode::kNoReplace));
  EXPECT_EQ(Find(b_, "two"), file);
}

TEST_F(RenameTest, DirectoryToAnotherParent) {
  const InodeId inner = MakeDirectory(a_, "inner");
  MakeFile(inner, "file");
  const uint64_t moves = MoveRevision();
  EXPECT_OK(Move(a_, "inner", a_, "renamed"));
  EXPECT_EQ(MoveRevision(), moves) << "the same parent: nothing to compare";
  EXPECT_OK(Move(a_, "renamed", b_, "moved"));
  EXPECT_GT(MoveRevision(), moves);
  EXPECT_EQ(*names().ParentOf({}, inner), b_);
  EXPECT_EQ(names().PathOf({}, inner, "file"), "b/moved/file");
  EXPECT_EQ(AttrNow(a_).nlink, 1u);
  EXPECT_EQ(AttrNow(b_).nlink, 1u);
}

TEST_F(RenameTest, NotBelowItself) {
  const InodeId inner = MakeDirectory(a_, "inner");
  const InodeId deep = MakeDirectory(inner, "deep");
  MakeFile(deep, "file");
  MakeDirectory(deep, "empty");
  EXPECT_CODE(Move(kRootInode, "a", a_, "x"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(kRootInode, "a", deep, "x"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(kRootInode, "a", deep, "file"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(kRootInode, "a", deep, "empty"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(kRootInode, "a", a_, "inner"), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(inner, "deep", kRootInode, "a"), ErrorCode::kNotEmpty);
  EXPECT_CODE(Move(kRootInode, "a", deep, "file", RenameMode::kExchange), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(deep, "file", kRootInode, "a", RenameMode::kExchange), ErrorCode::kInvalidArgument);
  EXPECT_CODE(Move(inner, "deep", kRootInode, "a", RenameMode::kExchange), ErrorCode::kInvalidArgument);
  EXPECT_EQ(names().PathOf({}, deep, "file"), "a/inner/deep/file");
}

TEST_F(RenameTest, ExchangeFileAndDirectory) {
  const InodeId file = MakeFile(a_, "x");
  const InodeId directory = MakeDirectory(b_, "y");
  MakeFile(directory, "inside");
  const uint64_t moves = MoveRevision();
  auto result = Move(a_, "x", b_, "y", RenameMode::kExchange);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->moved, file);
  EXPECT_EQ(result->exchanged, directory);
  EXPECT_FALSE(result->replaced);
  EXPECT_EQ(Find(a_, "x"), directory);
  EXPECT_EQ(Find(b_, "y"), file);
  EXPECT_EQ(*names().ParentOf({}, directory), a_);
  EXPECT_GT(MoveRevision(), moves);
  EXPECT_EQ(AttrNow(file).ctime, AttrNow(directory).ctime);
  EXPECT_EQ(AttrNow(a_).mtime, AttrNow(file).ctime);
  EXPECT_EQ(AttrNow(b_).mtime, AttrNow(file).ctime);
  EXPECT_EQ(AttrNow(file).nlink, 1u);
  auto entries = names().ReadDirectory({}, a_, "", 10);
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ((*entries)[0].type, uint32_t{S_IFDIR});
  EXPECT_TRUE(names().ListOrphans({})->empty());
}

TEST_F(RenameTest, ExchangeFullDirectories) {
  MakeFile(a_, "in_a");
  MakeFile(b_, "in_b");
  EXPECT_OK(Move(kRootInode, "a", kRootInode, "b", RenameMode::kExchange));
  EXPECT_EQ(Find(kRootInode, "a"), b_);
  EXPECT_EQ(Find(kRootInode, "b"), a_);
  const InodeId c = MakeDirectory(a_, "c");
  EXPECT_OK(Move(a_, "c", kRootInode, "a", RenameMode::kExchange));
  EXPECT_EQ(Find(kRootInode, "a"), c);
  EXPECT_EQ(Find(a_, "c"), b_);
  EXPECT_EQ(*names().ParentOf({}, c), kRootInode);
  EXPECT_EQ(*names().ParentOf({}, b_), a_);
}

TEST_F(RenameTest, KillPoints) {
  testing::FLAGS_gtest_death_test_style = "fast";
  MakeFile(a_, "file");
  for (const char* point : {"meta.rename_before_commit", "meta.rename_after_commit"}) {
    EXPECT_EXIT(
        {
          (void)Failpoint::Arm(std::string(point) + "=kill");
          (void)Move(a_, "file", b_, "file");
        },
        testing::KilledBySignal(SIGKILL), "");
  }
  EXPECT_OK(names().Unlink({}, a_, "file"));
  EXPECT_EXIT(
      {
        (void)Failpoint::Arm("meta.orphan_removed=kill");
        (void)names().RemoveOrphans({}, *names().ListOrphans({}));
      },
      testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace cairnfs::meta
