// What happens when something else comes between an operation's reads and its commit; orphans and their batches.
#include <thread>

#include "fixture.h"

namespace cairnfs::meta {
namespace {

class ConflictTest : public NamespaceTest {
 protected:
  void SetUp() override {
    NamespaceTest::SetUp();
    other_ = MakeNamespace(local_.get());  // as another host
  }
  CreateParams FileParams() {
    CreateParams params;
    params.mode = S_IFREG | 0644;
    return params;
  }
  std::unique_ptr<Namespace> other_;
};

TEST_F(ConflictTest, EveryOperationTriesAgain) {
  const InodeId file = MakeFile(kRootInode, "file");
  MakeDirectory(kRootInode, "directory");
  auto twice = [&](auto operation) {
    store_->conflicts = 2;
    EXPECT_OK(operation());
    EXPECT_EQ(store_->conflicts, 0);
  };
  twice([&] { return names().Create({}, kRootInode, "x", FileParams()); });
  twice([&] { return names().Link({}, file, kRootInode, "y"); });
  twice([&] { return names().Unlink({}, kRootInode, "y"); });
  twice([&] { return names().Rmdir({}, kRootInode, "directory"); });
  twice([&] { return Move(kRootInode, "x", kRootInode, "z"); });
  twice([&] { return names().SetAttr({}, file, {}); });
  twice([&] { return names().SetXattr({}, file, "user.a", "v", Namespace::XattrMode::kCreate); });
  twice([&] { return names().RemoveXattr({}, file, "user.a"); });
  twice([&] { return names().RemoveOrphans({}, *names().ListOrphans({})); });
  store_->conflicts = 2;
  names().TouchAtime({}, file, {9, 9});
  EXPECT_EQ(AttrNow(file).atime, (Timestamp{9, 9}));
}

TEST_F(ConflictTest, BitsThatAreClearedUndoNoChmod) {
  const InodeId file = MakeFile(kRootInode, "file");
  AttrChanges gives, takes, clears;
  gives.mode = 04755;
  takes.mode = 0700;
  clears.mode_cleared = S_ISUID | S_ISGID;
  EXPECT_OK(names().SetAttr({}, file, gives));
  store_->before_commit = [&] { EXPECT_OK(other_->SetAttr({}, file, takes)); };
  EXPECT_OK(names().SetAttr({}, file, clears));
  EXPECT_EQ(AttrNow(file).mode & 07777, 0700u);
}

TEST_F(ConflictTest, EndlessConflictIsBusy) {
  store_->conflicts = 1 << 30;
  EXPECT_CODE(names().Create({}, kRootInode, "x", FileParams()), ErrorCode::kBusy);
}

TEST_F(ConflictTest, OtherErrorsPassThrough) {
  const InodeId file = MakeFile(kRootInode, "file");
  store_->commit_error = "disk on fire";
  EXPECT_CODE(names().Create({}, kRootInode, "x", FileParams()), ErrorCode::kIo);
  EXPECT_CODE(Move(kRootInode, "file", kRootInode, "x"), ErrorCode::kIo);
  EXPECT_CODE(names().SetXattr({}, file, "user.a", "v", Namespace::XattrMode::kSet), ErrorCode::kIo);
  names().TouchAtime({}, file, {9, 9});
}

TEST_F(ConflictTest, CreateAgainstCreate) {
  store_->before_commit = [&] { EXPECT_OK(other_->Create({}, kRootInode, "x", FileParams())); };
  EXPECT_CODE(names().Create({}, kRootInode, "x", FileParams()), ErrorCode::kAlreadyExists);
  store_->before_commit = [&] { EXPECT_OK(other_->Create({}, kRootInode, "y", FileParams())); };
  const uint64_t commits = store_->commits;
  EXPECT_OK(names().Create({}, kRootInode, "z", FileParams()));
  EXPECT_EQ(store_->commits - commits, 1u) << "creates of different names do not conflict";
}

TEST_F(ConflictTest, CreateAgainstRmdir) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  store_->before_commit = [&] { EXPECT_OK(other_->Rmdir({}, kRootInode, "d")); };
  EXPECT_CODE(names().Create({}, directory, "x", FileParams()), ErrorCode::kNotFound);
  EXPECT_EQ(KeyCount(DentryPrefix(directory)), 0u);
  EXPECT_EQ(KeyCount(DirectoryTimesKey(directory)), 0u);
}

TEST_F(ConflictTest, RmdirAgainstCreate) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  store_->before_commit = [&] { EXPECT_OK(other_->Create({}, directory, "x", FileParams())); };
  EXPECT_CODE(names().Rmdir({}, kRootInode, "d"), ErrorCode::kNotEmpty);
  store_->before_commit = [&] { EXPECT_OK(other_->Rename({}, {directory, "x", kRootInode, "x"})); };
  EXPECT_OK(names().Rmdir({}, kRootInode, "d"));  // it was empty at the commit
}

TEST_F(ConflictTest, LinkAndRenameIntoARemovedDirectory) {
  const InodeId file = MakeFile(kRootInode, "file");
  InodeId directory = MakeDirectory(kRootInode, "d");
  store_->before_commit = [&] { EXPECT_OK(other_->Rmdir({}, kRootInode, "d")); };
  EXPECT_CODE(names().Link({}, file, directory, "x"), ErrorCode::kNotFound);
  directory = MakeDirectory(kRootInode, "d");
  store_->before_commit = [&] { EXPECT_OK(other_->Rmdir({}, kRootInode, "d")); };
  EXPECT_CODE(Move(kRootInode, "file", directory, "x"), ErrorCode::kNotFound);
  EXPECT_EQ(AttrNow(file).nlink, 1u);
  EXPECT_OK(names().Lookup({}, kRootInode, "file"));
}

TEST_F(ConflictTest, LinkAgainstUnlink) {
  const InodeId file = MakeFile(kRootInode, "file");
  store_->before_commit = [&] { EXPECT_OK(other_->Unlink({}, kRootInode, "file")); };
  EXPECT_CODE(names().Link({}, file, kRootInode, "x"), ErrorCode::kNotFound);
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{file});
}

TEST_F(ConflictTest, UnlinkAgainstUnlinkAndReplace) {
  MakeFile(kRootInode, "file");
  store_->before_commit = [&] { EXPECT_OK(other_->Unlink({}, kRootInode, "file")); };
  EXPECT_CODE(names().Unlink({}, kRootInode, "file"), ErrorCode::kNotFound);
  const InodeId old = MakeFile(kRootInode, "file");
  const InodeId replacement = MakeFile(kRootInode, "new");
  store_->before_commit = [&] { EXPECT_OK(other_->Rename({}, {kRootInode, "new", kRootInode, "file"})); };
  auto removed = names().Unlink({}, kRootInode, "file");
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->inode, replacement);
  EXPECT_EQ(AttrNow(old).nlink, 0u);
}

TEST_F(ConflictTest, RenameOverADirectoryThatFills) {
  const InodeId target = MakeDirectory(kRootInode, "target");
  MakeDirectory(kRootInode, "source");
  store_->before_commit = [&] { EXPECT_OK(other_->Create({}, target, "x", FileParams())); };
  EXPECT_CODE(Move(kRootInode, "source", kRootInode, "target"), ErrorCode::kNotEmpty);
}

TEST_F(ConflictTest, NoReplaceAgainstCreate) {
  MakeFile(kRootInode, "file");
  store_->before_commit = [&] { EXPECT_OK(other_->Create({}, kRootInode, "x", FileParams())); };
  EXPECT_CODE(Move(kRootInode, "file", kRootInode, "x", RenameMode::kNoReplace), ErrorCode::kAlreadyExists);
}

TEST_F(ConflictTest, TwoMovesThatWouldMakeACycle) {
  const InodeId a = MakeDirectory(kRootInode, "a");
  const InodeId b = MakeDirectory(kRootInode, "b");
  const InodeId below_b = MakeDirectory(b, "below");
  store_->before_commit = [&] { EXPECT_OK(other_->Rename({}, {kRootInode, "b", a, "b"})); };
  EXPECT_CODE(Move(kRootInode, "a", below_b, "a"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(names().PathOf({}, below_b, "x"), "a/b/below/x");
}

TEST_F(ConflictTest, SetAttrAgainstSetAttr) {
  const InodeId file = MakeFile(kRootInode, "file");
  AttrChanges mode, owner;
  mode.mode = 0600;
  owner.uid = 77;
  store_->before_commit = [&] { EXPECT_OK(other_->SetAttr({}, file, owner)); };
  EXPECT_OK(names().SetAttr({}, file, mode));
  EXPECT_EQ(AttrNow(file).mode, S_IFREG | 0600u);
  EXPECT_EQ(AttrNow(file).uid, 77u);
}

TEST_F(ConflictTest, MtimeOfADirectoryAgainstCreate) {
  AttrChanges changes;
  changes.mtime = Timestamp{5, 5};
  Timestamp created;
  store_->before_commit = [&] { created = other_->Create({}, kRootInode, "x", FileParams())->ctime; };
  EXPECT_OK(names().SetAttr({}, kRootInode, changes));
  EXPECT_EQ(AttrNow(kRootInode).mtime, (Timestamp{5, 5}));
  EXPECT_GE(AttrNow(kRootInode).ctime, created);
}

TEST_F(ConflictTest, OrphansGoWithAllTheirKeys) {
  const InodeId file = MakeFile(kRootInode, "file");
  const InodeId kept = MakeFile(kRootInode, "kept");
  const InodeId directory = MakeDirectory(kRootInode, "d");
  MakeFile(directory, "x");
  PutFile(file, {});
  EXPECT_OK(names().SetXattr({}, file, "user.a", "v", Namespace::XattrMode::kSet));
  EXPECT_OK(names().SetXattr({}, kept, "user.a", "v", Namespace::XattrMode::kSet));
  auto inside = names().Unlink({}, directory, "x");
  EXPECT_OK(names().Unlink({}, kRootInode, "file"));
  EXPECT_OK(names().Rmdir({}, kRootInode, "d"));
  EXPECT_EQ(names().ListOrphans({})->size(), 3u);
  EXPECT_EQ(KeyCount(DirectoryTimesKey(directory)), 1u);
  EXPECT_OK(names().RemoveOrphans({}, {file, kept, directory, inside->inode, InodeId{999}, file}));
  EXPECT_TRUE(names().ListOrphans({})->empty());
  for (InodeId gone : {file, directory, inside->inode}) {
    EXPECT_CODE(names().GetAttr({}, gone), ErrorCode::kNotFound);
    EXPECT_EQ(KeyCount(FileKey(gone)) + KeyCount(XattrPrefix(gone)) + KeyCount(DirectoryTimesKey(gone)), 0u);
  }
  EXPECT_OK(names().GetAttr({}, kept));
  EXPECT_EQ(*names().GetXattr({}, kept, "user.a"), "v");
}

TEST_F(ConflictTest, OrphansSurviveARestart) {
  const InodeId file = MakeFile(kRootInode, "file");
  EXPECT_OK(names().Unlink({}, kRootInode, "file"));
  EXPECT_OK(local_->Sync({}));
  other_.reset();
  Reopen();
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{file});
}

TEST_F(ConflictTest, OrphansInBatchesWithinTheLimits) {
  std::vector<InodeId> orphans;
  for (int i = 0; i < 40; i++) {
    orphans.push_back(MakeFile(kRootInode, "f"));
    for (int n = 0; n < i; n++) {
      EXPECT_OK(names().SetXattr({}, orphans.back(), "user." + std::to_string(n), "v", Namespace::XattrMode::kSet));
    }
    EXPECT_OK(names().Unlink({}, kRootInode, "f"));
  }
  store_->limits_ = {16, 4096};
  const uint64_t commits = store_->commits;
  EXPECT_OK(names().RemoveOrphans({}, orphans));
  EXPECT_GT(store_->commits - commits, 50u);
  EXPECT_TRUE(names().ListOrphans({})->empty());
  EXPECT_EQ(KeyCount("X"), 0u);
  EXPECT_EQ(KeyCount("I"), 1u);
}

TEST_F(ConflictTest, XattrSetWhileTheOrphanGoes) {
  const InodeId file = MakeFile(kRootInode, "file");
  EXPECT_OK(names().Unlink({}, kRootInode, "file"));
  store_->before_commit = [&] { EXPECT_OK(other_->SetXattr({}, file, "user.late", "v", Namespace::XattrMode::kSet)); };
  EXPECT_OK(names().RemoveOrphans({}, {file}));
  EXPECT_EQ(KeyCount("X"), 0u);
  EXPECT_CODE(names().GetAttr({}, file), ErrorCode::kNotFound);
}

TEST_F(ConflictTest, LookupWhileTheFileGoes) {
  // A name and its inode read at different times: the lookup must not take the gap for damage.
  std::atomic<bool> stop{false};
  std::thread churn([&] {
    while (!stop) {
      auto attr = other_->Create({}, kRootInode, "f", FileParams());
      if (!attr.ok()) continue;
      EXPECT_OK(other_->Unlink({}, kRootInode, "f"));
      EXPECT_OK(other_->RemoveOrphans({}, {attr->inode}));
    }
  });
  for (int i = 0; i < 20000; i++) {
    auto found = names().Lookup({}, kRootInode, "f");
    if (!found.ok()) {
      ASSERT_EQ(Outcome(found), ErrorCodeName(ErrorCode::kNotFound)) << found.error().message;
    }
  }
  stop = true;
  churn.join();
}

}  // namespace
}  // namespace cairnfs::meta
