// Every operation but rename: what it does and each of its errors.
#include "fixture.h"

namespace cairnfs::meta {
namespace {

using OperationsTest = NamespaceTest;

TEST_F(OperationsTest, FormatOnce) {
  auto header = names().ReadHeader({});
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->uuid, "0123456789abcdef");
  EXPECT_CODE(names().Format({}, *header, 0, 0), ErrorCode::kAlreadyExists);
  const Attr root = AttrNow(kRootInode);
  EXPECT_EQ(root.mode, S_IFDIR | 0755u);
  EXPECT_EQ(root.nlink, 1u);
  EXPECT_EQ(root.size, 4096u);
  auto parent = names().ParentOf({}, kRootInode);
  ASSERT_TRUE(parent.ok());
  EXPECT_EQ(*parent, kRootInode);
}

TEST_F(OperationsTest, HeaderMissingOrNewer) {
  auto engine = kv::OpenMemoryEngine();
  auto local = kv::LocalKvStore::Open(*engine);
  ASSERT_TRUE(local.ok());
  auto other = MakeNamespace(local->get());
  EXPECT_CODE(other->ReadHeader({}), ErrorCode::kNotFound);
  FilesystemHeader header;
  header.format_version = FilesystemHeader::kFormatVersion + 1;
  EXPECT_OK((*local)->Commit({}, kv::Transaction().Put(HeaderKey(), header.Encode())));
  EXPECT_CODE(other->ReadHeader({}), ErrorCode::kNotSupported);
  EXPECT_OK((*local)->Commit({}, kv::Transaction().Put(HeaderKey(), "rubbish")));
  EXPECT_CODE(other->ReadHeader({}), ErrorCode::kCorrupt);
}

TEST_F(OperationsTest, CreateAndLookUpEveryType) {
  const uint32_t types[] = {S_IFREG, S_IFDIR, S_IFLNK, S_IFCHR, S_IFBLK, S_IFIFO, S_IFSOCK};
  for (uint32_t type : types) {
    const std::string name = "type" + std::to_string(type);
    CreateParams params;
    params.mode = type | 0640;
    params.uid = kUid;
    params.gid = kGid;
    params.rdev = 0x501;
    if (type == S_IFLNK) params.symlink_target = "a/b";
    auto created = names().Create({}, kRootInode, name, params);
    ASSERT_TRUE(created.ok()) << created.error().message;
    auto found = names().Lookup({}, kRootInode, name);
    ASSERT_TRUE(found.ok());
    for (const Attr& attr : {*created, *found}) {
      EXPECT_EQ(attr.inode, created->inode);
      EXPECT_EQ(attr.mode, type | 0640u);
      EXPECT_EQ(attr.uid, kUid);
      EXPECT_EQ(attr.gid, kGid);
      EXPECT_EQ(attr.nlink, 1u);
      EXPECT_EQ(attr.rdev, type == S_IFCHR || type == S_IFBLK ? 0x501u : 0u);
      EXPECT_EQ(attr.size, type == S_IFDIR ? 4096u : type == S_IFLNK ? 3u : 0u);
      EXPECT_EQ(attr.ctime, created->ctime);
      EXPECT_EQ(attr.mtime, created->ctime);
      EXPECT_EQ(attr.atime, created->ctime);
    }
    const Attr root = AttrNow(kRootInode);
    EXPECT_EQ(root.mtime, created->ctime);
    EXPECT_EQ(root.ctime, created->ctime);
    EXPECT_EQ(root.nlink, 1u);
  }
}

TEST_F(OperationsTest, CreateErrors) {
  const InodeId file = MakeFile(kRootInode, "file");
  CreateParams params;
  params.mode = S_IFREG | 0644;
  EXPECT_CODE(names().Create({}, kRootInode, "file", params), ErrorCode::kAlreadyExists);
  EXPECT_CODE(names().Create({}, file, "x", params), ErrorCode::kNotDirectory);
  EXPECT_CODE(names().Create({}, InodeId{999}, "x", params), ErrorCode::kNotFound);
  EXPECT_CODE(names().Create({}, kRootInode, std::string(256, 'n'), params), ErrorCode::kNameTooLong);
  EXPECT_OK(names().Create({}, kRootInode, std::string(255, 'n'), params));
  EXPECT_OK(names().Create({}, kRootInode, "odd \xff\x01\n bytes", params));
  for (std::string_view name : {std::string_view(""), std::string_view("."), std::string_view(".."),
                                std::string_view("a/b"), std::string_view("a\0b", 3)}) {
    EXPECT_CODE(names().Create({}, kRootInode, name, params), ErrorCode::kInvalidArgument);
    EXPECT_CODE(names().Lookup({}, kRootInode, name), ErrorCode::kInvalidArgument);
    EXPECT_CODE(names().Link({}, file, kRootInode, name), ErrorCode::kInvalidArgument);
    EXPECT_CODE(names().Unlink({}, kRootInode, name), ErrorCode::kInvalidArgument);
    EXPECT_CODE(names().Rmdir({}, kRootInode, name), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Move(kRootInode, name, kRootInode, "y"), ErrorCode::kInvalidArgument);
    EXPECT_CODE(Move(kRootInode, "file", kRootInode, name), ErrorCode::kInvalidArgument);
  }
  params.mode = 0644;
  EXPECT_CODE(names().Create({}, kRootInode, "x", params), ErrorCode::kInvalidArgument);
  params.mode = S_IFLNK | 0777;
  EXPECT_CODE(names().Create({}, kRootInode, "x", params), ErrorCode::kNotFound);
  params.symlink_target = std::string(4096, 't');
  EXPECT_CODE(names().Create({}, kRootInode, "x", params), ErrorCode::kNameTooLong);
  params.symlink_target.pop_back();
  auto symlink = names().Create({}, kRootInode, "x", params);
  ASSERT_TRUE(symlink.ok());
  auto target = names().ReadLink({}, symlink->inode);
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(*target, params.symlink_target);
  EXPECT_CODE(names().ReadLink({}, file), ErrorCode::kInvalidArgument);
  EXPECT_CODE(names().ReadLink({}, InodeId{999}), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, SetGroupIdParentHandsOnItsGroup) {
  const InodeId parent = Make(kRootInode, "shared", S_IFDIR | S_ISGID | 0775);
  CreateParams params;
  params.mode = S_IFREG | 0644;
  params.uid = 7;
  params.gid = 8;
  auto file = names().Create({}, parent, "file", params);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->gid, kGid);
  EXPECT_EQ(file->uid, 7u);
  EXPECT_EQ(file->mode, S_IFREG | 0644u);
  params.mode = S_IFDIR | 0700;
  auto directory = names().Create({}, parent, "directory", params);
  ASSERT_TRUE(directory.ok());
  EXPECT_EQ(directory->gid, kGid);
  EXPECT_EQ(directory->mode, S_IFDIR | S_ISGID | 0700u);
}

TEST_F(OperationsTest, LookupErrors) {
  const InodeId file = MakeFile(kRootInode, "file");
  EXPECT_CODE(names().Lookup({}, kRootInode, "none"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Lookup({}, file, "x"), ErrorCode::kNotDirectory);
  EXPECT_CODE(names().Lookup({}, InodeId{999}, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Lookup({}, kRootInode, std::string(256, 'n')), ErrorCode::kNameTooLong);
  EXPECT_CODE(names().GetAttr({}, InodeId{999}), ErrorCode::kNotFound);
  EXPECT_CODE(names().ParentOf({}, file), ErrorCode::kNotDirectory);
  EXPECT_CODE(names().ParentOf({}, InodeId{999}), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, EntryWithoutInodeIsCorrupt) {
  EXPECT_OK(local_->Commit(
      {}, kv::Transaction().Put(DentryKey(kRootInode, "lost"), DentryRecord{InodeId{999}, S_IFREG}.Encode())));
  EXPECT_CODE(names().Lookup({}, kRootInode, "lost"), ErrorCode::kCorrupt);
  EXPECT_OK(local_->Commit({}, kv::Transaction().Put(DentryKey(kRootInode, "lost"), "rubbish")));
  EXPECT_CODE(names().Lookup({}, kRootInode, "lost"), ErrorCode::kCorrupt);
  EXPECT_CODE(names().ReadDirectory({}, kRootInode, "", 10), ErrorCode::kCorrupt);
}

TEST_F(OperationsTest, ContentComesFromTheFileRecord) {
  const InodeId file = MakeFile(kRootInode, "file");
  const Attr before = AttrNow(file);
  FileRecord record;
  record.size = 12345;
  record.allocated_bytes = 8192;
  record.mtime = {5, 6};
  record.ctime = {7, 8};
  PutFile(file, record);
  Attr attr = AttrNow(file);
  EXPECT_EQ(attr.size, 12345u);
  EXPECT_EQ(attr.allocated_bytes, 8192u);
  EXPECT_EQ(attr.mtime, (Timestamp{5, 6}));
  EXPECT_EQ(attr.ctime, before.ctime) << "the later one counts";
  record.ctime = {before.ctime.seconds + 100, 0};
  PutFile(file, record);
  EXPECT_EQ(AttrNow(file).ctime, record.ctime);
}

TEST_F(OperationsTest, AFileWithADamagedContentRecordCanBeRemoved) {
  const InodeId file = MakeFile(kRootInode, "file");
  EXPECT_OK(local_->Commit({}, kv::Transaction().Put(FileKey(file), "rubbish")));
  EXPECT_CODE(names().GetAttr({}, file), ErrorCode::kCorrupt);
  EXPECT_OK(names().Unlink({}, kRootInode, "file"));
  EXPECT_OK(names().RemoveOrphans({}, {file}));
  EXPECT_EQ(KeyCount(FileKey(file)), 0u);
}

TEST_F(OperationsTest, LinkCountsAndErrors) {
  const InodeId file = MakeFile(kRootInode, "file");
  const InodeId directory = MakeDirectory(kRootInode, "directory");
  const Attr before = AttrNow(file);
  auto linked = names().Link({}, file, directory, "again");
  ASSERT_TRUE(linked.ok());
  EXPECT_EQ(linked->nlink, 2u);
  EXPECT_GT(linked->ctime, before.ctime);
  EXPECT_EQ(linked->mtime, before.mtime);
  EXPECT_EQ(AttrNow(directory).mtime, linked->ctime);
  EXPECT_EQ(AttrNow(directory).ctime, linked->ctime);
  EXPECT_EQ(names().Lookup({}, directory, "again")->inode, file);
  EXPECT_CODE(names().Link({}, file, directory, "again"), ErrorCode::kAlreadyExists);
  EXPECT_CODE(names().Link({}, directory, kRootInode, "x"), ErrorCode::kPermission);
  EXPECT_CODE(names().Link({}, InodeId{999}, kRootInode, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Link({}, file, file, "x"), ErrorCode::kNotDirectory);
  EXPECT_CODE(names().Link({}, file, InodeId{999}, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Link({}, file, kRootInode, std::string(256, 'n')), ErrorCode::kNameTooLong);
  EXPECT_OK(names().Unlink({}, kRootInode, "file"));
  EXPECT_OK(names().Unlink({}, directory, "again"));
  EXPECT_CODE(names().Link({}, file, kRootInode, "x"), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, LinksHaveAMaximum) {
  options_.links_max = 3;
  SetUp();
  const InodeId file = MakeFile(kRootInode, "0");
  EXPECT_OK(names().Link({}, file, kRootInode, "1"));
  EXPECT_OK(names().Link({}, file, kRootInode, "2"));
  EXPECT_CODE(names().Link({}, file, kRootInode, "3"), ErrorCode::kTooManyLinks);
  EXPECT_OK(names().Unlink({}, kRootInode, "0"));
  EXPECT_OK(names().Link({}, file, kRootInode, "3"));
}

TEST_F(OperationsTest, UnlinkLeavesAnOrphan) {
  const InodeId file = MakeFile(kRootInode, "file");
  FileRecord record;
  record.size = 10;
  PutFile(file, record);
  EXPECT_OK(names().Link({}, file, kRootInode, "second"));
  auto first = names().Unlink({}, kRootInode, "file");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->nlink, 1u);
  EXPECT_EQ(first->size, 10u);
  EXPECT_EQ(AttrNow(kRootInode).mtime, first->ctime);
  EXPECT_TRUE(names().ListOrphans({})->empty());
  auto second = names().Unlink({}, kRootInode, "second");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->nlink, 0u);
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{file});
  EXPECT_EQ(AttrNow(file).size, 10u) << "whole until it is removed";
  EXPECT_CODE(names().Unlink({}, kRootInode, "second"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Unlink({}, file, "x"), ErrorCode::kNotDirectory);
  MakeDirectory(kRootInode, "directory");
  EXPECT_CODE(names().Unlink({}, kRootInode, "directory"), ErrorCode::kIsDirectory);
}

TEST_F(OperationsTest, RmdirAndWhatARemovedDirectoryRefuses) {
  const InodeId directory = MakeDirectory(kRootInode, "directory");
  const InodeId file = MakeFile(directory, "file");
  EXPECT_CODE(names().Rmdir({}, kRootInode, "directory"), ErrorCode::kNotEmpty);
  EXPECT_CODE(names().Rmdir({}, directory, "file"), ErrorCode::kNotDirectory);
  EXPECT_CODE(names().Rmdir({}, kRootInode, "none"), ErrorCode::kNotFound);
  EXPECT_OK(Move(directory, "file", kRootInode, "file"));
  auto removed = names().Rmdir({}, kRootInode, "directory");
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->nlink, 0u);
  EXPECT_EQ(AttrNow(kRootInode).mtime, removed->ctime);
  EXPECT_EQ(*names().ListOrphans({}), std::vector<InodeId>{directory});
  CreateParams params;
  params.mode = S_IFREG | 0644;
  EXPECT_CODE(names().Create({}, directory, "x", params), ErrorCode::kNotFound);
  EXPECT_CODE(names().Link({}, file, directory, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(Move(kRootInode, "file", directory, "x"), ErrorCode::kNotFound);
  EXPECT_CODE(names().Lookup({}, directory, "x"), ErrorCode::kNotFound);
  EXPECT_TRUE(Names(directory).empty());
  EXPECT_EQ(AttrNow(directory).nlink, 0u);
}

TEST_F(OperationsTest, SetAttrChangesWhatItIsTold) {
  const InodeId file = MakeFile(kRootInode, "file");
  const Attr before = AttrNow(file);
  AttrChanges changes;
  changes.mode = S_IFDIR | S_ISUID | 0600;  // the type bits are not its business
  auto after = names().SetAttr({}, file, changes);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->mode, S_IFREG | S_ISUID | 0600u);
  EXPECT_EQ(after->uid, before.uid);
  EXPECT_GT(after->ctime, before.ctime);
  EXPECT_EQ(after->mtime, before.mtime);
  changes = {};
  changes.uid = 5;
  changes.gid = 6;
  changes.atime = Timestamp{10, 20};
  changes.ctime = Timestamp{1'800'000'000, 0};
  after = names().SetAttr({}, file, changes);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->mode, S_IFREG | S_ISUID | 0600u) << "the kernel says when set-user-id goes";
  EXPECT_EQ(after->uid, 5u);
  EXPECT_EQ(after->gid, 6u);
  EXPECT_EQ(after->atime, (Timestamp{10, 20}));
  EXPECT_EQ(after->ctime, (Timestamp{1'800'000'000, 0}));
  changes = {};
  changes.mtime = Timestamp{1, 1};
  EXPECT_CODE(names().SetAttr({}, file, changes), ErrorCode::kInvalidArgument);
  EXPECT_CODE(names().SetAttr({}, InodeId{999}, {}), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, TimesOfADirectoryCanBeSetBack) {
  const InodeId directory = MakeDirectory(kRootInode, "directory");
  MakeFile(directory, "file");
  AttrChanges changes;
  changes.mtime = Timestamp{100, 1};
  auto after = names().SetAttr({}, directory, changes);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->mtime, (Timestamp{100, 1}));
  EXPECT_EQ(AttrNow(directory).mtime, (Timestamp{100, 1}));
  const Timestamp ctime = AttrNow(directory).ctime;
  changes = {};
  changes.mode = 0700;
  EXPECT_OK(names().SetAttr({}, directory, changes));
  EXPECT_EQ(AttrNow(directory).mtime, (Timestamp{100, 1}));
  EXPECT_GT(AttrNow(directory).ctime, ctime);
  EXPECT_OK(names().Unlink({}, directory, "file"));
  EXPECT_GT(AttrNow(directory).mtime, ctime);
}

TEST_F(OperationsTest, TimesOfASymlinkCanBeSet) {
  const InodeId symlink = Make(kRootInode, "symlink", S_IFLNK | 0777);
  AttrChanges changes;
  changes.mtime = Timestamp{100, 1};
  EXPECT_OK(names().SetAttr({}, symlink, changes));
  EXPECT_EQ(AttrNow(symlink).mtime, (Timestamp{100, 1}));
}

TEST_F(OperationsTest, TouchAtimeLeavesCtime) {
  const InodeId file = MakeFile(kRootInode, "file");
  const Attr before = AttrNow(file);
  names().TouchAtime({}, file, {1'900'000'000, 3});
  EXPECT_EQ(AttrNow(file).atime, (Timestamp{1'900'000'000, 3}));
  EXPECT_EQ(AttrNow(file).ctime, before.ctime);
  names().TouchAtime({}, InodeId{999}, {1, 1});
  EXPECT_EQ(KeyCount(InodeKey(InodeId{999})), 0u);
}

TEST_F(OperationsTest, ReadDirectoryInPages) {
  const InodeId directory = MakeDirectory(kRootInode, "directory");
  std::vector<std::string> expected;
  for (int i = 0; i < 25; i++) {
    expected.push_back("f" + std::to_string(100 + i));
    MakeFile(directory, expected.back());
  }
  MakeFile(kRootInode, "neighbour");
  std::vector<std::string> seen;
  std::string after;
  for (;;) {
    auto page = names().ReadDirectory({}, directory, after, 7);
    ASSERT_TRUE(page.ok());
    EXPECT_LE(page->size(), 7u);
    if (page->empty()) break;
    for (const auto& entry : *page) {
      EXPECT_EQ(entry.type, uint32_t{S_IFREG});
      EXPECT_EQ(names().Lookup({}, directory, entry.name)->inode, entry.inode);
      seen.push_back(entry.name);
    }
    after = seen.back();
    if (seen.size() == 14) {
      EXPECT_OK(names().Unlink({}, directory, after));  // a cookie that is gone still works
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_TRUE(names().ReadDirectory({}, directory, "", 0)->empty());
  EXPECT_CODE(names().ReadDirectory({}, names().Lookup({}, directory, "f100")->inode, "", 10),
              ErrorCode::kNotDirectory);
  EXPECT_CODE(names().ReadDirectory({}, InodeId{999999}, "", 10), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, NamesThatArePrefixesOfEachOther) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  const std::vector<std::string> expected = {"a", std::string("a\x01"), "aa", "ab", std::string("a\xff"), "b"};
  for (auto it = expected.rbegin(); it != expected.rend(); ++it) MakeFile(directory, *it);
  EXPECT_EQ(Names(directory), expected);
  auto rest = names().ReadDirectory({}, directory, "a", 100);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->size(), 5u);
  EXPECT_EQ((*rest)[0].name, std::string("a\x01"));
}

TEST_F(OperationsTest, Xattrs) {
  using Mode = Namespace::XattrMode;
  const InodeId file = MakeFile(kRootInode, "file");
  const Timestamp ctime = AttrNow(file).ctime;
  EXPECT_CODE(names().GetXattr({}, file, "user.a"), ErrorCode::kNoData);
  EXPECT_CODE(names().SetXattr({}, file, "user.a", "1", Mode::kReplace), ErrorCode::kNoData);
  EXPECT_OK(names().SetXattr({}, file, "user.a", "1", Mode::kCreate));
  EXPECT_GT(AttrNow(file).ctime, ctime);
  EXPECT_CODE(names().SetXattr({}, file, "user.a", "2", Mode::kCreate), ErrorCode::kAlreadyExists);
  EXPECT_OK(names().SetXattr({}, file, "user.a", "2", Mode::kReplace));
  EXPECT_OK(names().SetXattr({}, file, "user.empty", "", Mode::kSet));
  EXPECT_EQ(*names().GetXattr({}, file, "user.a"), "2");
  EXPECT_EQ(*names().GetXattr({}, file, "user.empty"), "");
  EXPECT_EQ(*names().ListXattrs({}, file), (std::vector<std::string>{"user.a", "user.empty"}));
  EXPECT_OK(names().SetXattr({}, file, "user.big", std::string(64 * kKiB, 'x'), Mode::kSet));
  EXPECT_CODE(names().SetXattr({}, file, "user.big", std::string(64 * kKiB + 1, 'x'), Mode::kSet),
              ErrorCode::kValueTooLarge);
  EXPECT_OK(names().SetXattr({}, file, std::string(255, 'n'), "v", Mode::kSet));
  EXPECT_CODE(names().SetXattr({}, file, std::string(256, 'n'), "v", Mode::kSet), ErrorCode::kRange);
  EXPECT_CODE(names().GetXattr({}, file, std::string(256, 'n')), ErrorCode::kRange);
  EXPECT_CODE(names().GetXattr({}, file, ""), ErrorCode::kRange);
  EXPECT_CODE(names().RemoveXattr({}, file, "user.none"), ErrorCode::kNoData);
  EXPECT_CODE(names().RemoveXattr({}, file, std::string(256, 'n')), ErrorCode::kRange);
  const Timestamp before = AttrNow(file).ctime;
  EXPECT_OK(names().RemoveXattr({}, file, "user.a"));
  EXPECT_GT(AttrNow(file).ctime, before);
  EXPECT_CODE(names().GetXattr({}, file, "user.a"), ErrorCode::kNoData);
  const InodeId none{999};
  EXPECT_CODE(names().GetXattr({}, none, "user.a"), ErrorCode::kNotFound);
  EXPECT_CODE(names().SetXattr({}, none, "user.a", "", Mode::kSet), ErrorCode::kNotFound);
  EXPECT_CODE(names().ListXattrs({}, none), ErrorCode::kNotFound);
  EXPECT_CODE(names().RemoveXattr({}, none, "user.a"), ErrorCode::kNotFound);
}

TEST_F(OperationsTest, PathsForMessages) {
  const InodeId a = MakeDirectory(kRootInode, "a");
  const InodeId b = MakeDirectory(a, "b");
  EXPECT_EQ(names().PathOf({}, kRootInode, "file"), "file");
  EXPECT_EQ(names().PathOf({}, b, "file"), "a/b/file");
  EXPECT_EQ(names().PathOf({}, InodeId{999}, "file"), "#999/file");
}

TEST_F(OperationsTest, InodeNumbersAreNeverUsedAgain) {
  options_.inode_batch = 4;
  SetUp();
  uint64_t last = kRootInode.value;
  const int before = durable_puts_;
  for (int i = 0; i < 9; i++) {
    const InodeId inode = MakeFile(kRootInode, "f" + std::to_string(i));
    EXPECT_GT(inode.value, last);
    last = inode.value;
  }
  EXPECT_EQ(durable_puts_, before + 3);
  // None of these files was synced, and still their numbers stay used.
  Reopen();
  FilesystemHeader header;
  EXPECT_OK(names().Format({}, header, 0, 0));
  EXPECT_GT(MakeFile(kRootInode, "f").value, last);
}

TEST_F(OperationsTest, NoNumberWithoutAReservation) {
  EXPECT_OK(local_->CommitDurable({kv::KvWrite{NextInodeKey(), "rubbish"}}));
  CreateParams params;
  params.mode = S_IFREG | 0644;
  EXPECT_CODE(names().Create({}, kRootInode, "x", params), ErrorCode::kCorrupt);
  EXPECT_OK(local_->CommitDurable({kv::KvWrite{NextInodeKey(), std::nullopt}}));
  EXPECT_CODE(names().Create({}, kRootInode, "x", params), ErrorCode::kCorrupt);
}

// What each operation costs; a change here is a change of speed that somebody should have meant.
TEST_F(OperationsTest, ReadsPerOperation) {
  MakeFile(kRootInode, "warm");  // takes the reservation
  auto gets = [&, before = uint64_t{0}](auto operation) mutable {
    before = store_->gets;
    operation();
    return store_->gets - before;
  };
  EXPECT_EQ(gets([&] { MakeFile(kRootInode, "f"); }), 1u);
  EXPECT_EQ(gets([&] { EXPECT_OK(names().Lookup({}, kRootInode, "f")); }), 3u);
  const InodeId file = names().Lookup({}, kRootInode, "f")->inode;
  EXPECT_EQ(gets([&] { EXPECT_OK(names().GetAttr({}, file)); }), 2u);
  EXPECT_EQ(gets([&] { EXPECT_OK(names().GetAttr({}, kRootInode)); }), 2u);
  EXPECT_EQ(gets([&] { EXPECT_OK(Move(kRootInode, "f", kRootInode, "g")); }), 3u);
  EXPECT_EQ(gets([&] { EXPECT_OK(names().Unlink({}, kRootInode, "g")); }), 3u);
}

}  // namespace
}  // namespace cairnfs::meta
