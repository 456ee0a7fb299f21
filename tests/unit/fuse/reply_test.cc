#include "fuse/reply.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>

namespace cairnfs::fuse {
namespace {

meta::Attr FileAttr() {
  meta::Attr attr;
  attr.inode = InodeId{77};
  attr.mode = S_IFREG | 0640;
  attr.uid = 1;
  attr.gid = 2;
  attr.nlink = 3;
  attr.size = 5'000'000'000;
  attr.allocated_bytes = 513;
  attr.atime = {-1, 1};
  attr.mtime = {10, 999'999'999};
  attr.ctime = {20, 5};
  return attr;
}

TEST(ReplyTest, StatHoldsWhatTheAttributesSay) {
  const struct stat out = StatOf(FileAttr());
  EXPECT_EQ(out.st_ino, 77U);
  EXPECT_EQ(out.st_mode, static_cast<mode_t>(S_IFREG | 0640));
  EXPECT_EQ(out.st_size, 5'000'000'000);
  EXPECT_EQ(out.st_blocks, 2);
  EXPECT_EQ(out.st_blksize, static_cast<blksize_t>(kMiB));
  EXPECT_EQ(out.st_mtim.tv_nsec, 999'999'999);
}

TEST(ReplyTest, DirectoriesAskForSmallReads) {
  meta::Attr attr = FileAttr();
  attr.mode = S_IFDIR | 0755;
  EXPECT_EQ(StatOf(attr).st_blksize, static_cast<blksize_t>(kPageBytes));
}

TEST(ReplyTest, TheHandMadeEntryAgreesWithStat) {
  const meta::Attr attr = FileAttr();
  const struct stat expected = StatOf(attr);
  const fuse_entry_out out = EntryOut(attr, CacheTimes{});
  EXPECT_EQ(out.nodeid, 77U);
  EXPECT_EQ(out.generation, 0U);
  EXPECT_EQ(out.entry_valid, static_cast<uint64_t>(kEntrySeconds));
  EXPECT_EQ(out.attr.ino, expected.st_ino);
  EXPECT_EQ(out.attr.size, static_cast<uint64_t>(expected.st_size));
  EXPECT_EQ(out.attr.blocks, static_cast<uint64_t>(expected.st_blocks));
  EXPECT_EQ(static_cast<int64_t>(out.attr.atime), -1);
  EXPECT_EQ(out.attr.mtimensec, 999'999'999U);
  EXPECT_EQ(out.attr.nlink, 3U);
  EXPECT_EQ(out.attr.blksize, kMiB);
}

TEST(ReplyTest, AnswersThatTheKernelTakesHoweverOldTellNoSetId) {
  meta::Attr attr = FileAttr();
  attr.mode = S_IFREG | 06755;
  EXPECT_EQ(AttrToReply(attr, WhenOld::kDropped).mode, static_cast<uint32_t>(S_IFREG | 06755));
  EXPECT_EQ(AttrToReply(attr, WhenOld::kTaken).mode, static_cast<uint32_t>(S_IFREG | 0755));
  attr.mode = S_IFDIR | 02755;
  EXPECT_EQ(AttrToReply(attr, WhenOld::kTaken).mode, static_cast<uint32_t>(S_IFDIR | 02755));
}

TEST(ReplyTest, FilesAreOpenedForDirectParallelWrites) {
  const fuse_open_out out = OpenOut(9);
  EXPECT_EQ(out.fh, 9U);
  EXPECT_EQ(out.open_flags, static_cast<uint32_t>(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES));
}

TEST(ReplyTest, WithABackingIdTheKernelReadsThatFileItself) {
  const fuse_open_out out = OpenOut(9, 3);
  EXPECT_EQ(out.fh, 9U);
  EXPECT_EQ(out.open_flags, 1U << 7);
  uint32_t words[4];
  std::memcpy(words, &out, sizeof out);
  EXPECT_EQ(words[3], 3U);
}

}  // namespace
}  // namespace cairnfs::fuse
