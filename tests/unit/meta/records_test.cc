// The encodings: golden bytes pin the format, and broken input never crashes a decoder.
#include "meta/records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "base/hex.h"

namespace cairnfs::meta {
namespace {

InodeRecord SampleFile() {
  InodeRecord record;
  record.mode = S_IFREG | 0640;
  record.uid = 1000;
  record.gid = 100;
  record.nlink = 2;
  record.atime = {1700000000, 1};
  record.mtime = {1700000001, 2};
  record.ctime = {-1, 999'999'999};
  return record;
}

InodeRecord SampleSymlink() {
  InodeRecord record = SampleFile();
  record.mode = S_IFLNK | 0777;
  record.symlink_target = "../here";
  return record;
}

InodeRecord SampleDirectory() {
  InodeRecord record = SampleFile();
  record.mode = S_IFDIR | S_ISGID | 0755;
  record.nlink = 1;
  record.parent = kRootInode;
  return record;
}

FileRecord SampleContent() {
  FileRecord record;
  record.size = 0x123456789a;
  record.allocated_bytes = 4096;
  record.mtime = {1700000000, 5};
  record.ctime = {1700000001, 6};
  record.unique_bytes = 4095;
  record.quota = InodeId{258};
  record.recipe = "recipe";
  return record;
}

FilesystemHeader SampleHeader() {
  FilesystemHeader header;
  header.uuid = "0123456789abcdef";
  header.created = {1700000000, 7};
  header.chunk_params = "cp";
  return header;
}

FilesystemHeader HeaderOfOwners() {
  FilesystemHeader header = SampleHeader();
  header.dedup = Dedup::kOwner;
  return header;
}

TEST(RecordsTest, GoldenKeys) {
  const InodeId inode{0x0102030405060708};
  EXPECT_EQ(ToHex(HeaderKey()), "48");
  EXPECT_EQ(ToHex(InodeKey(inode)), "490102030405060708");
  EXPECT_EQ(ToHex(FileKey(inode)), "440102030405060708");
  EXPECT_EQ(ToHex(DentryPrefix(inode)), "450102030405060708");
  EXPECT_EQ(ToHex(DentryKey(inode, "ab")), "4501020304050607086162");
  EXPECT_EQ(ToHex(DirectoryTimesKey(inode)), "540102030405060708");
  EXPECT_EQ(ToHex(XattrPrefix(inode)), "580102030405060708");
  EXPECT_EQ(ToHex(XattrKey(inode, "user.a")), "580102030405060708757365722e61");
  EXPECT_EQ(ToHex(OrphanKey(inode)), "4f0102030405060708");
  EXPECT_EQ(ToHex(MoveKey()), "56");
  EXPECT_EQ(ToHex(NextInodeKey()), "4e");
}

TEST(RecordsTest, GoldenValues) {
  EXPECT_EQ(ToHex(SampleFile().Encode()),
            "01"
            "a0810000"
            "e8030000"
            "64000000"
            "02000000"
            "0000000000000000"
            "00f1536500000000"
            "01000000"
            "01f1536500000000"
            "02000000"
            "ffffffffffffffff"
            "ffc99a3b"
            "0000000000000000"
            "00");
  EXPECT_EQ(ToHex(SampleSymlink().Encode()),
            "01"
            "ffa10000"
            "e8030000"
            "64000000"
            "02000000"
            "0000000000000000"
            "00f1536500000000"
            "01000000"
            "01f1536500000000"
            "02000000"
            "ffffffffffffffff"
            "ffc99a3b"
            "0000000000000000"
            "07"
            "2e2e2f68657265");
  EXPECT_EQ(ToHex(SampleDirectory().Encode()),
            "01"
            "ed450000"
            "e8030000"
            "64000000"
            "01000000"
            "0000000000000000"
            "00f1536500000000"
            "01000000"
            "01f1536500000000"
            "02000000"
            "ffffffffffffffff"
            "ffc99a3b"
            "0100000000000000"
            "00");
  EXPECT_EQ(ToHex(SampleContent().Encode()),
            "02"
            "9a78563412000000"
            "0010000000000000"
            "00f1536500000000"
            "05000000"
            "01f1536500000000"
            "06000000"
            "ff0f000000000000"
            "0201000000000000"
            "06"
            "726563697065");
  EXPECT_EQ(ToHex(DentryRecord{InodeId{7}, S_IFDIR}.Encode()),
            "01"
            "0700000000000000"
            "00400000");
  EXPECT_EQ(ToHex(DirectoryTimes{{1700000000, 1}, {1700000001, 2}}.Encode()),
            "01"
            "00f1536500000000"
            "01000000"
            "01f1536500000000"
            "02000000");
  EXPECT_EQ(ToHex(SampleHeader().Encode()),
            "436169726e46530a"
            "01000000"
            "30313233343536373839616263646566"
            "00f1536500000000"
            "07000000"
            "02"
            "6370");
  EXPECT_EQ(ToHex(HeaderOfOwners().Encode()),
            "436169726e46530a"
            "02000000"
            "30313233343536373839616263646566"
            "00f1536500000000"
            "07000000"
            "02"
            "6370"
            "01");
}

TEST(RecordsTest, ValuesComeBack) {
  auto symlink = InodeRecord::Decode(SampleSymlink().Encode());
  ASSERT_TRUE(symlink.ok());
  EXPECT_EQ(symlink->mode, SampleSymlink().mode);
  EXPECT_EQ(symlink->symlink_target, "../here");
  EXPECT_EQ(symlink->ctime, (Timestamp{-1, 999'999'999}));
  auto directory = InodeRecord::Decode(SampleDirectory().Encode());
  ASSERT_TRUE(directory.ok());
  EXPECT_EQ(directory->parent, kRootInode);
  auto content = FileRecord::Decode(SampleContent().Encode());
  ASSERT_TRUE(content.ok());
  EXPECT_EQ(content->size, SampleContent().size);
  EXPECT_EQ(content->allocated_bytes, 4096u);
  EXPECT_EQ(content->recipe, "recipe");
  auto header = FilesystemHeader::Decode(SampleHeader().Encode());
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->uuid, SampleHeader().uuid);
  EXPECT_EQ(header->chunk_params, "cp");
  EXPECT_EQ(header->dedup, Dedup::kMount);
  header = FilesystemHeader::Decode(HeaderOfOwners().Encode());
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->chunk_params, "cp");
  EXPECT_EQ(header->dedup, Dedup::kOwner);
}

// Every shorter input is an error, and so is one byte more. A flipped bit may give another valid record, but never a
// crash, and what decodes encodes to the same bytes.
void CheckBroken(const std::string& good, const std::function<std::optional<std::string>(std::string_view)>& decode) {
  ASSERT_EQ(decode(good), good);
  for (size_t size = 0; size < good.size(); size++) {
    EXPECT_FALSE(decode(std::string_view(good).substr(0, size)).has_value()) << "cut to " << size;
  }
  EXPECT_FALSE(decode(good + '\0').has_value());
  for (size_t at = 0; at < good.size(); at++) {
    for (int flip = 1; flip < 256; flip++) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      auto again = decode(bad);
      if (again) {
        EXPECT_EQ(*again, bad) << "byte " << at << " flipped by " << flip;
      }
    }
  }
}

template <typename Record>
std::optional<std::string> Recode(std::string_view bytes) {
  // A copy of the exact size, so that a sanitizer sees any read past it.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  auto record = Record::Decode({copy.data(), copy.size()});
  if (!record.ok()) return std::nullopt;
  return record->Encode();
}

TEST(RecordsTest, BrokenInput) {
  CheckBroken(SampleFile().Encode(), Recode<InodeRecord>);
  CheckBroken(SampleSymlink().Encode(), Recode<InodeRecord>);
  CheckBroken(SampleDirectory().Encode(), Recode<InodeRecord>);
  CheckBroken(SampleContent().Encode(), Recode<FileRecord>);
  CheckBroken(DentryRecord{InodeId{7}, S_IFREG}.Encode(), Recode<DentryRecord>);
  CheckBroken(DirectoryTimes{{1, 2}, {3, 4}}.Encode(), Recode<DirectoryTimes>);
  CheckBroken(SampleHeader().Encode(), Recode<FilesystemHeader>);
  CheckBroken(HeaderOfOwners().Encode(), Recode<FilesystemHeader>);
}

TEST(RecordsTest, NewerFormatIsNamed) {
  FilesystemHeader header = SampleHeader();
  header.format_version = 9;
  auto decoded = FilesystemHeader::Decode(header.Encode());
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code, ErrorCode::kNotSupported);
  EXPECT_NE(decoded.error().message.find("version 9"), std::string::npos);
  EXPECT_NE(decoded.error().message.find("up to 2"), std::string::npos);
}

TEST(RecordsTest, KindsThatDisagree) {
  InodeRecord record = SampleDirectory();
  record.parent = {};
  EXPECT_FALSE(InodeRecord::Decode(record.Encode()).ok());
  record = SampleFile();
  record.parent = kRootInode;
  std::string with_parent = record.Encode();
  EXPECT_TRUE(InodeRecord::Decode(with_parent).ok());
  with_parent[0] = 1;  // the record version in which only directories have one
  EXPECT_FALSE(InodeRecord::Decode(with_parent).ok());
  record = SampleDirectory();
  with_parent = record.Encode();
  with_parent[0] = 2;
  EXPECT_FALSE(InodeRecord::Decode(with_parent).ok());
  record = SampleFile();
  record.symlink_target = "x";
  EXPECT_FALSE(InodeRecord::Decode(record.Encode()).ok());
  record = SampleFile();
  record.mode = 0644;
  EXPECT_FALSE(InodeRecord::Decode(record.Encode()).ok());
  FileRecord content = SampleContent();
  content.size = UINT64_MAX;
  EXPECT_FALSE(FileRecord::Decode(content.Encode()).ok());
}

TEST(RecordsTest, MarksOfUnpublishedFilesAndTheirKeys) {
  const UnpublishedMark mark{0x0102030405060708, "no space"};
  const std::string encoded = mark.Encode();
  EXPECT_EQ(encoded, std::string("\x03\x08\x07\x06\x05\x04\x03\x02\x01\x08no space"));
  auto decoded = UnpublishedMark::Decode(encoded);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->session, mark.session);
  EXPECT_EQ(decoded->failure, mark.failure);
  for (size_t size = 0; size < encoded.size(); size++) {
    EXPECT_FALSE(UnpublishedMark::Decode(encoded.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(UnpublishedMark::Decode(encoded + "x").ok());
  EXPECT_FALSE(UnpublishedMark::Decode("\x04" + encoded.substr(1)).ok());
  // Versions 1 and 2 told more than the session.
  auto old = UnpublishedMark::Decode("\x02" + encoded.substr(1, 8) + "and more");
  ASSERT_TRUE(old.ok());
  EXPECT_EQ(old->session, mark.session);
  EXPECT_EQ(old->failure, "");

  const std::string node(kNodeIdBytes, 'n');
  const std::string key = MarkKey(InodeId{77}, node, 5);
  EXPECT_TRUE(key.starts_with(MarkPrefix(InodeId{77})));
  for (const std::string& each : {key, key.substr(0, key.size() - sizeof(uint64_t))}) {
    auto parts = DecodeMarkKey(each);
    ASSERT_TRUE(parts.has_value());
    EXPECT_EQ(parts->inode, InodeId{77});
    EXPECT_EQ(parts->node, node);
  }
  EXPECT_NE(key, MarkKey(InodeId{77}, node, 6));
  EXPECT_FALSE(DecodeMarkKey(key.substr(0, key.size() - 1)).has_value());
  EXPECT_FALSE(DecodeMarkKey(key + "x").has_value());
  EXPECT_FALSE(DecodeMarkKey(XattrKey(InodeId{77}, node)).has_value());
}

TEST(RecordsTest, LevelsAndTheirKeys) {
  for (bool is_replicated : {false, true}) {
    const std::string encoded = LevelRecord{is_replicated}.Encode();
    auto decoded = LevelRecord::Decode(encoded);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->is_replicated, is_replicated);
    EXPECT_FALSE(LevelRecord::Decode(encoded.substr(0, 1)).ok());
    EXPECT_FALSE(LevelRecord::Decode(encoded + "x").ok());
  }
  EXPECT_FALSE(LevelRecord::Decode("\x01\x02").ok());
  EXPECT_EQ(InodeOfLevelKey(LevelKey(InodeId{77})), InodeId{77});
  EXPECT_TRUE(LevelKey(InodeId{77}).starts_with(LevelsPrefix()));
  EXPECT_FALSE(InodeOfLevelKey(InodeKey(InodeId{77})).has_value());
  EXPECT_FALSE(InodeOfLevelKey("Y").has_value());
}

TEST(RecordsTest, RulesOfFilesThatAppearWholeAndTheirKeys) {
  EXPECT_EQ((AtomicRecord{"*.pt a", true}.Encode()), std::string("\x01\x02\x01\x06*.pt a"));
  for (const std::optional<std::string>& patterns : {std::optional<std::string>(), {""}, {"*.index latest"}}) {
    for (const std::optional<bool> complete : {std::optional<bool>(), {false}, {true}}) {
      const std::string encoded = AtomicRecord{patterns, complete}.Encode();
      auto decoded = AtomicRecord::Decode(encoded);
      ASSERT_TRUE(decoded.ok());
      EXPECT_EQ(decoded->patterns, patterns);
      EXPECT_EQ(decoded->must_be_complete, complete);
      for (size_t length = 0; length < encoded.size(); length++) {
        EXPECT_FALSE(AtomicRecord::Decode(encoded.substr(0, length)).ok());
      }
      EXPECT_FALSE(AtomicRecord::Decode(encoded + "x").ok());
    }
  }
  for (const std::string& wrong : {std::string("\x02\0\0\0", 4), std::string("\x01\x03\0\0", 4),
                                   std::string("\x01\0\x02\0", 4), std::string("\x01\0\0\x01*", 5)}) {
    EXPECT_FALSE(AtomicRecord::Decode(wrong).ok());
  }
  EXPECT_EQ(AtomicKey(InodeId{77}), std::string("VW\0\0\0\0\0\0\0M", 10));
  EXPECT_EQ(InodeOfAtomicKey(AtomicKey(InodeId{77})), InodeId{77});
  for (const std::string& other : {LevelKey(InodeId{77}), MoveKey(), AtomicsPrefix(), AtomicKey(InodeId{77}) + "x"}) {
    EXPECT_FALSE(InodeOfAtomicKey(other).has_value());
  }
}

TEST(RecordsTest, InodeOfKey) {
  const InodeId inode{77};
  EXPECT_EQ(InodeOfKey(InodeKey(inode)), inode);
  EXPECT_EQ(InodeOfKey(FileKey(inode)), inode);
  EXPECT_EQ(InodeOfKey(OrphanKey(inode)), inode);
  EXPECT_EQ(InodeOfKey(DentryKey(inode, "a")), std::nullopt);
  EXPECT_EQ(InodeOfKey(DentryPrefix(inode)), std::nullopt);
  EXPECT_EQ(InodeOfKey(""), std::nullopt);
  EXPECT_EQ(InodeOfKey("I1234567"), std::nullopt);
  EXPECT_EQ(InodeOfKey("I123456789"), std::nullopt);
}

}  // namespace
}  // namespace cairnfs::meta
