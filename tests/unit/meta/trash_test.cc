// The trash: what keeps its records without a name, comes back, or goes for good.
#include "base/hex.h"
#include "fixture.h"
#include "meta/dump.h"
#include "meta/trash_record.h"

namespace cairnfs::meta {
namespace {

const TrashParams kTrash{.keep = std::chrono::hours(1), .removed_by = 7, .held = {.files = 1, .bytes = 5}};

class TrashTest : public NamespaceTest {
 protected:
  std::vector<TrashEntry> All() {
    auto entries = names().ListTrash({}, "", 0);
    EXPECT_TRUE(entries.ok());
    return entries.ok() ? *entries : std::vector<TrashEntry>();
  }
  TrashEntry Only() {
    auto entries = All();
    EXPECT_EQ(entries.size(), 1u);
    return entries.at(0);
  }
  InodeId RemoveFile(std::string_view name) {
    const InodeId file = MakeFile(kRootInode, name);
    auto removed = names().Unlink({}, kRootInode, name, kTrash);
    EXPECT_TRUE(removed.ok() && removed->in_trash && removed->nlink == 0);
    return file;
  }
  // top/below/file and top/other.
  InodeId RemoveTree() {
    const InodeId top = MakeDirectory(kRootInode, "top");
    const InodeId below = MakeDirectory(top, "below");
    file_ = MakeFile(below, "file");
    MakeFile(top, "other");
    below_ = below;
    TrashParams whole = kTrash;
    whole.whole = true;
    EXPECT_TRUE(names().Rmdir({}, kRootInode, "top", whole).ok());
    return top;
  }
  // All that is doomed, to its end.
  size_t ClearAll() {
    size_t removed = 0;
    for (;;) {
      const auto doomed = names().ListDoomed({}, 10);
      EXPECT_TRUE(doomed.ok());
      if (!doomed.ok() || doomed->empty()) return removed;
      for (const InodeId directory : *doomed) {
        const auto cleared = names().ClearDoomed({}, directory);
        EXPECT_TRUE(cleared.ok());
        if (!cleared.ok()) return removed;
        removed += cleared->removed.size();
      }
    }
  }
  std::vector<InodeId> Orphans() { return *names().ListOrphans({}); }
  Result<Attr> RestoreTo(const TrashEntry& entry, InodeId parent, std::string name) {
    return names().Restore({}, {.entry = entry, .to_parent = parent, .to_name = std::move(name)});
  }

  InodeId below_, file_;
};

TEST_F(TrashTest, ARecordHasItsBytes) {
  const TrashRecord record{.expires = {1, 2},
                           .type = S_IFREG,
                           .owner = 3,
                           .parent_owner = 4,
                           .removed_by = 5,
                           .by_retention = true,
                           .files = 6,
                           .bytes = 7,
                           .parent = InodeId{8},
                           .name = "n"};
  const std::string bytes = record.Encode();
  EXPECT_EQ(ToHex(bytes),
            "01"
            "010000000000000002000000"
            "00800000"
            "03000000"
            "04000000"
            "05000000"
            "01"
            "0600000000000000"
            "0700000000000000"
            "0800000000000000"
            "016e");
  const auto decoded = TrashRecord::Decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->Encode(), bytes);
  for (size_t size = 0; size < bytes.size(); size++) EXPECT_FALSE(TrashRecord::Decode(bytes.substr(0, size)).ok());
  EXPECT_FALSE(TrashRecord::Decode(bytes + "x").ok());
  EXPECT_FALSE(TrashRecord::Decode("\2" + bytes.substr(1)).ok());
  const TrashKeyParts parts{.removed_at_ns = 258, .inode = InodeId{9}};
  EXPECT_EQ(ToHex(TrashKey(parts)),
            "74"
            "0000000000000102"
            "0000000000000009");
  EXPECT_EQ(DecodeTrashKey(TrashKey(parts))->inode, parts.inode);
  EXPECT_FALSE(DecodeTrashKey(TrashKey(parts) + "x"));
  EXPECT_FALSE(DecodeTrashKey("t"));
}

TEST_F(TrashTest, ADumpHasItsRecords) {
  const TrashRecord record{.type = S_IFDIR, .parent = kRootInode, .name = "n"};
  const std::string key = TrashKey({.removed_at_ns = 1, .inode = InodeId{9}}), doomed = DoomedKey(InodeId{9});
  ASSERT_TRUE(IsInDump(key));
  EXPECT_TRUE(CheckDumpEntry(key, record.Encode()).ok());
  EXPECT_TRUE(CheckDumpEntry(doomed, "").ok());
  EXPECT_CODE(CheckDumpEntry(key, ""), ErrorCode::kCorrupt);
  EXPECT_CODE(CheckDumpEntry(doomed, record.Encode()), ErrorCode::kCorrupt);
  EXPECT_CODE(CheckDumpEntry(key + "x", record.Encode()), ErrorCode::kCorrupt);
}

TEST_F(TrashTest, AFileKeepsItsRecordsAndComesBack) {
  const InodeId file = RemoveFile("file");
  const TrashEntry entry = Only();
  EXPECT_EQ(entry.parts.inode, file);
  EXPECT_EQ(entry.record.name, "file");
  EXPECT_EQ(entry.record.parent, kRootInode);
  EXPECT_EQ(entry.record.removed_by, 7u);
  EXPECT_EQ(entry.record.bytes, 5u);
  EXPECT_EQ(entry.record.expires.seconds - TimeOfTrashKey(entry.parts).seconds, 3600);
  EXPECT_TRUE(Orphans().empty());
  ASSERT_TRUE(names().RemoveOrphans({}, {file}).ok()) << "it is none";
  EXPECT_CODE(names().Link({}, file, kRootInode, "again"), ErrorCode::kNotFound);
  const auto restored = RestoreTo(entry, kRootInode, "back");
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->nlink, 1u);
  EXPECT_EQ(names().Lookup({}, kRootInode, "back")->inode, file);
  EXPECT_TRUE(All().empty());
  EXPECT_CODE(RestoreTo(entry, kRootInode, "twice"), ErrorCode::kNotFound);
}

TEST_F(TrashTest, ARecordThatIsDamagedHidesNoOther) {
  RemoveFile("one");
  const InodeId two = RemoveFile("two");
  const InodeId three = RemoveFile("three");
  ASSERT_TRUE(local_->Commit({}, kv::Transaction().Put(All().at(1).key, "damaged")).ok());
  ASSERT_EQ(All().size(), 2u);
  EXPECT_EQ(All().at(1).parts.inode, three);
  size_t damaged = 0;
  const auto page = names().ListTrash({}, "", 2, &damaged);
  EXPECT_EQ(damaged, 1u);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->size(), 2u) << "a page is short only where there are no more";
  EXPECT_NE(two, three);
}

TEST_F(TrashTest, OnlyTheLastNameTakesItThere) {
  const InodeId file = MakeFile(kRootInode, "one");
  ASSERT_TRUE(names().Link({}, file, kRootInode, "two").ok());
  const auto first = names().Unlink({}, kRootInode, "one", kTrash);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->in_trash);
  EXPECT_TRUE(All().empty());
  ASSERT_TRUE(names().Unlink({}, kRootInode, "two", kTrash).ok());
  EXPECT_EQ(Only().record.name, "two");
}

TEST_F(TrashTest, WhatARenameReplacesGoesThere) {
  const InodeId old = MakeFile(kRootInode, "file");
  MakeFile(kRootInode, "file.tmp");
  RenameParams params{kRootInode, "file.tmp", kRootInode, "file"};
  params.trash = kTrash;
  const auto renamed = names().Rename({}, params);
  ASSERT_TRUE(renamed.ok());
  EXPECT_TRUE(renamed->replaced->in_trash);
  EXPECT_EQ(Only().parts.inode, old);
  EXPECT_CODE(RestoreTo(Only(), kRootInode, "file"), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(RestoreTo(Only(), kRootInode, "old").ok());
}

TEST_F(TrashTest, ADirectoryGoesAndComesBackWithAllBelow) {
  const InodeId top = RemoveTree();
  EXPECT_EQ(names().FindBelow({}, kRootInode, {below_})->size(), 0u) << "no path leads there";
  CreateParams file;
  file.mode = S_IFREG | 0644;
  EXPECT_CODE(names().Create({}, top, "new", file), ErrorCode::kNotFound);
  // What still reaches into it takes nothing out of reach, and moves no directory there.
  const InodeId mine = MakeDirectory(kRootInode, "mine");
  EXPECT_CODE(names().Rename({}, {kRootInode, "mine", below_, "mine"}), ErrorCode::kNotFound);
  EXPECT_CODE(RestoreTo(Only(), below_, "inside"), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(RestoreTo(Only(), mine, "back").ok());
  EXPECT_EQ(*names().ParentOf({}, top), mine);
  EXPECT_EQ(names().Lookup({}, below_, "file")->inode, file_);
  EXPECT_EQ(names().FindBelow({}, mine, {below_})->size(), 1u);
}

TEST_F(TrashTest, WhatIsDoomedGoesAndIsNeverRestored) {
  const InodeId top = RemoveTree();
  const TrashEntry entry = Only();
  const auto doomed = names().Doom({}, {{entry}});
  EXPECT_TRUE(doomed->orphans.empty());
  EXPECT_EQ(doomed->entries, 1u);
  EXPECT_TRUE(All().empty());
  EXPECT_CODE(RestoreTo(entry, kRootInode, "back"), ErrorCode::kNotFound);
  EXPECT_EQ(*names().ListDoomed({}, 10), std::vector{top});
  EXPECT_EQ(ClearAll(), 4u);
  EXPECT_EQ(Orphans().size(), 4u);
  ASSERT_TRUE(names().RemoveOrphans({}, Orphans()).ok());
  EXPECT_CODE(names().GetAttr({}, file_), ErrorCode::kNotFound);
  EXPECT_CODE(names().GetAttr({}, top), ErrorCode::kNotFound);
}

TEST_F(TrashTest, WhatHasADamagedInodeIsNotDoomedAndHoldsUpNoOther) {
  const InodeId bad = RemoveFile("one");
  const InodeId good = RemoveFile("two");
  ASSERT_TRUE(local_->Commit({}, kv::Transaction().Put(InodeKey(bad), "damaged")).ok());
  const auto doomed = names().Doom({}, All());
  ASSERT_TRUE(doomed.ok());
  EXPECT_EQ(doomed->entries, 1u);
  EXPECT_EQ(Orphans(), std::vector{good});
}

TEST_F(TrashTest, WhatWasRestoredBeforeIsNotDoomed) {
  const InodeId file = RemoveFile("file");
  const TrashEntry entry = Only();
  store_->before_commit = [&] { ASSERT_TRUE(RestoreTo(entry, kRootInode, "back").ok()); };
  EXPECT_EQ(names().Doom({}, {{entry}})->entries, 0u) << "by a list that is old";
  EXPECT_EQ(AttrNow(file).nlink, 1u);
  EXPECT_TRUE(Orphans().empty());
}

TEST_F(TrashTest, ADirectoryThatIsMovedOutOfADoomedOneStays) {
  const InodeId top = RemoveTree();
  ASSERT_TRUE(names().Doom({}, {{Only()}}).ok());
  store_->before_commit = [&] { ASSERT_TRUE(names().Rename({}, {top, "below", kRootInode, "saved"}).ok()); };
  ClearAll();
  ASSERT_TRUE(names().RemoveOrphans({}, Orphans()).ok());
  EXPECT_EQ(names().Lookup({}, below_, "file")->inode, file_);
  EXPECT_EQ(names().Lookup({}, kRootInode, "saved")->inode, below_);
}

// Each of these takes the most writes that there are.
TEST_F(TrashTest, ManyFilesOfAQuotaGoInRequestsThatEtcdTakes) {
  const InodeId top = MakeDirectory(kRootInode, "top");
  ASSERT_TRUE(names().SetQuota({}, top, top).ok());
  for (int i = 0; i < 70; i++) MakeFile(top, "file" + std::to_string(i));
  TrashParams whole = kTrash;
  whole.whole = true;
  ASSERT_TRUE(names().Rmdir({}, kRootInode, "top", whole).ok());
  const TrashEntry entry = Only();
  ASSERT_TRUE(names().Doom({}, std::span(&entry, 1)).ok());
  store_->limits_.operations_per_transaction_max = 127;
  EXPECT_EQ(ClearAll(), 71u);
}

TEST_F(TrashTest, OfManyEntriesThoseOfAQuotaAreFound) {
  const InodeId top = MakeDirectory(kRootInode, "top");
  ASSERT_TRUE(names().SetQuota({}, top, top).ok());
  const InodeId below = MakeDirectory(top, "below");
  MakeDirectory(kRootInode, "other");
  ASSERT_TRUE(names().Rmdir({}, top, "below", kTrash).ok() && names().Rmdir({}, kRootInode, "other", kTrash).ok());
  const auto under = names().TrashUnder({}, All(), top, 1);
  ASSERT_TRUE(under.ok() && under->size() == 1);
  EXPECT_EQ(under->front().parts.inode, below);
}

TEST_F(TrashTest, AttributesComeWithTheName) {
  RemoveFile("file");
  const auto restored = names().Restore(
      {}, {.entry = Only(), .to_parent = kRootInode, .to_name = "file", .attributes = {{"user.a", "value"}}});
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(*names().GetXattr({}, restored->inode, "user.a"), "value");
}

}  // namespace
}  // namespace cairnfs::meta
