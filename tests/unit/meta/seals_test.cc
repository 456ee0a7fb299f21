// Seals: what is below a sealed directory is refused every change, by the transaction that would make it.
#include "meta/seals.h"

#include "fixture.h"
#include "meta/dump.h"

namespace cairnfs::meta {
namespace {

class SealsTest : public NamespaceTest {
 protected:
  // dir/below/file, dir/below/other, and beside them out/file.
  void SetUp() override {
    NamespaceTest::SetUp();
    directory_ = MakeDirectory(kRootInode, "dir");
    below_ = MakeDirectory(directory_, "below");
    file_ = MakeFile(below_, "file");
    MakeFile(below_, "other");
    out_ = MakeDirectory(kRootInode, "out");
    free_ = MakeFile(out_, "file");
  }
  static AttrChanges Mode(uint32_t mode) {
    AttrChanges changes;
    changes.mode = mode;
    return changes;
  }
  static Status SealBy(Namespace& names, InodeId directory) {
    const auto marked = names.MarkSealing({}, directory, Namespace::SealFor::kItself);
    if (!marked.ok()) return marked.error();
    return names.EndSealing({}, directory, *marked, Namespace::SealEnd::kSeal);
  }
  void Seal() { ASSERT_TRUE(SealBy(names(), directory_).ok()); }
  void Unseal() { ASSERT_TRUE(names().SetSeal({}, directory_, SealState::kNone).ok()); }
  Status Rename(InodeId from, std::string from_name, InodeId to, std::string to_name) {
    const auto renamed = names().Rename({}, {from, std::move(from_name), to, std::move(to_name)});
    return renamed.ok() ? Status() : Status(renamed.error());
  }
  // Each change of what is below, and of the directory itself. An error stands for the first that has another result.
  void ExpectAll(std::optional<ErrorCode> refused) {
    const auto expect = [&](const std::string& what, const auto& result) {
      if (refused) {
        EXPECT_TRUE(!result.ok() && result.error().code == *refused) << what;
      } else {
        EXPECT_TRUE(result.ok()) << what << ": " << (result.ok() ? "" : result.error().message);
      }
    };
    CreateParams file;
    file.mode = S_IFREG | 0644;
    expect("create", names().Create({}, below_, "new", file));
    expect("link inside", names().Link({}, file_, below_, "link"));
    expect("link from outside", names().Link({}, free_, below_, "free"));
    expect("link to outside", names().Link({}, file_, out_, "linked"));
    expect("mode", names().SetAttr({}, file_, Mode(0600)));
    expect("mode of a directory below", names().SetAttr({}, below_, Mode(0700)));
    expect("mode of the directory", names().SetAttr({}, directory_, Mode(0700)));
    expect("xattr", names().SetXattr({}, file_, "user.a", "1", Namespace::XattrMode::kSet));
    expect("rename inside", Rename(below_, "file", below_, "moved"));
    expect("rename to outside", Rename(below_, "other", out_, "other"));
    expect("rename from outside", Rename(out_, "file", below_, "free2"));
    expect("rename of the directory", Rename(kRootInode, "dir", kRootInode, "dir2"));
  }

  InodeId directory_, below_, file_, out_, free_;
};

TEST_F(SealsTest, NothingBelowCanBeChanged) {
  ASSERT_TRUE(names().SetXattr({}, file_, "user.before", "1", Namespace::XattrMode::kSet).ok());
  Seal();
  ExpectAll(ErrorCode::kSealed);
  EXPECT_CODE(names().Unlink({}, below_, "file"), ErrorCode::kSealed);
  EXPECT_CODE(names().Rmdir({}, directory_, "below"), ErrorCode::kSealed);
  EXPECT_CODE(names().RemoveXattr({}, file_, "user.before"), ErrorCode::kSealed);
  EXPECT_CODE(SealBy(names(), below_), ErrorCode::kSealed) << "nor sealed anew";
  EXPECT_CODE(names().SetSeal({}, directory_, SealState::kCommits), ErrorCode::kSealed);
  EXPECT_EQ(names().Lookup({}, below_, "file")->inode, file_) << "reading goes on";
  Unseal();
  ExpectAll({});
}

TEST_F(SealsTest, WhatLiesElsewhereIsFree) {
  Seal();
  EXPECT_TRUE(names().SetAttr({}, free_, Mode(0600)).ok());
  EXPECT_TRUE(Rename(out_, "file", out_, "moved").ok());
  const InodeId above = MakeDirectory(kRootInode, "above");
  EXPECT_CODE(names().Rename({}, {kRootInode, "dir", above, "dir"}), ErrorCode::kSealed);
  EXPECT_TRUE(names().SetAttr({}, kRootInode, Mode(0755)).ok());
}

TEST_F(SealsTest, WhatIsAboveMayMove) {
  const InodeId above = MakeDirectory(kRootInode, "above");
  ASSERT_TRUE(Rename(kRootInode, "dir", above, "dir").ok());
  Seal();
  EXPECT_TRUE(Rename(kRootInode, "above", out_, "above").ok());
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  EXPECT_CODE(names().Rmdir({}, above, "dir"), ErrorCode::kSealed);
}

TEST_F(SealsTest, AnEmptySealedDirectoryStays) {
  const InodeId empty = MakeDirectory(kRootInode, "empty");
  ASSERT_TRUE(SealBy(names(), empty).ok());
  EXPECT_CODE(names().Rmdir({}, kRootInode, "empty"), ErrorCode::kSealed);
  MakeDirectory(kRootInode, "other");
  EXPECT_CODE(names().Rename({}, {kRootInode, "other", kRootInode, "empty"}), ErrorCode::kSealed);
}

TEST_F(SealsTest, AFileIsSealedUnderEachOfItsNames) {
  ASSERT_TRUE(names().Link({}, file_, out_, "second").ok());
  Seal();
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  EXPECT_CODE(names().Link({}, file_, out_, "third"), ErrorCode::kSealed);
  EXPECT_TRUE(names().Unlink({}, out_, "second").ok()) << "that takes nothing away below";
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  EXPECT_EQ(names().FindNamedBelow({}, directory_, {file_, free_})->size(), 1u);
}

TEST_F(SealsTest, FilesWithSeveralNamesAreToldApart) {
  ASSERT_TRUE(names().Link({}, file_, out_, "second").ok());
  ASSERT_TRUE(names().Link({}, free_, out_, "third").ok());
  EXPECT_TRUE(names().KnowsSealsOf({}, file_)) << "there are no seals";
  Seal();
  EXPECT_FALSE(names().KnowsSealsOf({}, file_));
  EXPECT_CODE(names().CheckUnsealed({}, file_), ErrorCode::kSealed);
  EXPECT_TRUE(names().KnowsSealsOf({}, free_)) << "one look was for all";
  EXPECT_TRUE(names().CheckUnsealed({}, free_).ok());
  EXPECT_EQ(*names().FindNamedBelow({}, directory_, {file_, free_}), std::vector{file_});
  // One that gets its second name later is free too.
  const InodeId later = MakeFile(out_, "later");
  ASSERT_TRUE(names().Link({}, later, out_, "later2").ok());
  EXPECT_TRUE(names().CheckUnsealed({}, later).ok());
}

TEST_F(SealsTest, WhatIsSealedBelowIsFound) {
  const InodeId above = MakeDirectory(kRootInode, "above");
  ASSERT_TRUE(Rename(kRootInode, "dir", above, "dir").ok());
  EXPECT_TRUE(names().CheckNoneSealedBelow({}, above).ok());
  ASSERT_TRUE(SealBy(names(), below_).ok());
  EXPECT_CODE(names().CheckNoneSealedBelow({}, above), ErrorCode::kSealed);
  EXPECT_TRUE(names().CheckNoneSealedBelow({}, out_).ok());
  TrashParams whole{.keep = std::chrono::hours(1)};
  whole.whole = true;
  EXPECT_CODE(names().Rmdir({}, kRootInode, "above", whole), ErrorCode::kSealed);
  ASSERT_TRUE(names().SetSeal({}, below_, SealState::kNone).ok());
  ASSERT_TRUE(names().Rmdir({}, kRootInode, "above", whole).ok());
  EXPECT_CODE(SealBy(names(), below_), ErrorCode::kNotFound) << "it is in the trash";
}

// The removal of all from above is made after the seal has looked there.
TEST_F(SealsTest, NoMarkIsLeftInTheTrash) {
  const InodeId above = MakeDirectory(kRootInode, "above");
  ASSERT_TRUE(Rename(kRootInode, "dir", above, "dir").ok());
  Namespace other(*store_, {}, {});
  store_->before_commit = [&] {
    TrashParams whole{.keep = std::chrono::hours(1)};
    whole.whole = true;
    ASSERT_TRUE(other.Rmdir({}, kRootInode, "above", whole).ok());
  };
  EXPECT_CODE(names().MarkSealing({}, below_, Namespace::SealFor::kItself), ErrorCode::kNotFound);
  EXPECT_EQ(*names().SealOf({}, below_), SealState::kNone);
  EXPECT_FALSE(*store_->Get({}, SealedKey(below_)));
}

TEST_F(SealsTest, AMarkEndsAlsoBelowAnother) {
  const auto inner = names().MarkSealing({}, below_, Namespace::SealFor::kItself);
  ASSERT_TRUE(inner.ok());
  Seal();
  EXPECT_CODE(names().EndSealing({}, below_, *inner, Namespace::SealEnd::kSeal), ErrorCode::kSealed);
  ASSERT_TRUE(names().EndSealing({}, below_, *inner, Namespace::SealEnd::kReopen).ok());
  Unseal();
  EXPECT_TRUE(names().SetAttr({}, file_, Mode(0600)).ok());
}

TEST_F(SealsTest, OnlyTheLastMarkCounts) {
  using SealEnd = Namespace::SealEnd;
  ASSERT_TRUE(names().SetSeal({}, directory_, SealState::kCommits).ok());
  const auto first = names().MarkSealing({}, directory_, Namespace::SealFor::kItself);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->before, SealState::kCommits);
  const auto second = names().MarkSealing({}, directory_, Namespace::SealFor::kItself);
  ASSERT_TRUE(second.ok());
  EXPECT_CODE(names().EndSealing({}, directory_, *first, SealEnd::kReopen), ErrorCode::kBusy);
  EXPECT_CODE(names().EndSealing({}, directory_, *first, SealEnd::kSeal), ErrorCode::kBusy);
  ASSERT_TRUE(names().EndSealing({}, directory_, *second, SealEnd::kReopen).ok());
  EXPECT_EQ(*names().SealOf({}, directory_), SealState::kCommits) << "as before";
  EXPECT_TRUE(names().SetAttr({}, file_, Mode(0600)).ok());
}

TEST_F(SealsTest, ASealThatComesInBetweenIsNoticed) {
  ASSERT_TRUE(names().SetAttr({}, file_, Mode(0644)).ok());  // what is seen last: no seal
  Namespace other(*store_, {}, {});
  const auto seal = [&] { ASSERT_TRUE(SealBy(other, directory_).ok()); };
  store_->before_commit = seal;
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  ASSERT_TRUE(other.SetSeal({}, directory_, SealState::kNone).ok());
  EXPECT_TRUE(names().SetAttr({}, file_, Mode(0600)).ok()) << "and so is its end";
  store_->before_commit = seal;
  EXPECT_CODE(names().Unlink({}, below_, "file"), ErrorCode::kSealed);
}

TEST_F(SealsTest, ACommitSealsInOneStep) {
  const auto marked = names().MarkSealing({}, directory_, Namespace::SealFor::kCommit);
  ASSERT_TRUE(marked.ok());
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  RenameParams params{kRootInode, "dir", out_, "final"};
  params.seals = marked->mark;
  ASSERT_TRUE(names().Rename({}, params).ok());
  EXPECT_EQ(*names().SealOf({}, directory_), SealState::kSealed);
  EXPECT_CODE(names().SetAttr({}, file_, Mode(0600)), ErrorCode::kSealed);
  EXPECT_CODE(names().EndSealing({}, directory_, *marked, Namespace::SealEnd::kReopen), ErrorCode::kBusy);
}

TEST_F(SealsTest, ARecordHasItsState) {
  Seal();
  const auto record = store_->Get({}, InodeKey(directory_));
  ASSERT_TRUE(record.ok() && *record);
  const std::string& bytes = (*record)->value;
  EXPECT_EQ(bytes.front(), '\3');
  const size_t state_at = bytes.size() - 9;
  EXPECT_EQ(bytes.at(state_at), '\4');
  for (size_t size = 0; size < bytes.size(); size++) EXPECT_FALSE(InodeRecord::Decode(bytes.substr(0, size)).ok());
  for (const char wrong : {'\0', '\7'}) {
    std::string other = bytes;
    other[state_at] = wrong;
    EXPECT_FALSE(InodeRecord::Decode(other).ok());
  }
  EXPECT_TRUE(IsInDump(SealsKey()));
  EXPECT_TRUE(CheckDumpEntry(SealsKey(), (*store_->Get({}, SealsKey()))->value).ok());
  EXPECT_TRUE(CheckDumpEntry(SealedKey(directory_), "").ok());
  EXPECT_CODE(CheckDumpEntry(SealedKey(directory_), "x"), ErrorCode::kCorrupt);
  EXPECT_TRUE(*store_->Get({}, SealedKey(directory_)));
  Unseal();
  EXPECT_FALSE(*store_->Get({}, SealedKey(directory_)));
  EXPECT_EQ((*store_->Get({}, InodeKey(directory_)))->value.front(), '\1');
}

}  // namespace
}  // namespace cairnfs::meta
