#include "base/mount_info.h"

#include <gtest/gtest.h>

namespace cairnfs {
namespace {

constexpr const char* kSample =
    "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
    "30 22 0:42 /run\\040a /mnt/a\\040b rw,relatime shared:9 master:2 - fuse.cairnfs cairn\\040fs rw,user_id=0\n"
    "31 30 0:43 / /mnt/a\\040b rw - tmpfs none rw\n"
    "nonsense\n"
    "32 22 0:44 / /mnt/plain rw - fuse.cairnfs /data/b\\134c rw\n";

TEST(MountInfoTest, ReadsFieldsWithAndWithoutOptionalOnes) {
  auto table = ParseMountInfo(kSample);
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(table[0].mount_point, "/");
  EXPECT_EQ(table[0].type, "ext4");
  EXPECT_EQ(table[1].device, "0:42");
  EXPECT_EQ(table[1].root, "/run a");
  EXPECT_EQ(table[1].mount_point, "/mnt/a b");
  EXPECT_EQ(table[1].type, kMountType);
  EXPECT_EQ(table[1].source, "cairn fs");
  EXPECT_EQ(table[1].options, "rw,relatime");
  EXPECT_EQ(table[1].super_options, "rw,user_id=0");
  EXPECT_EQ(table[3].mount_point, "/mnt/plain");
  EXPECT_EQ(table[3].source, "/data/b\\c");
}

TEST(MountInfoTest, OnlyBlanksEndAWord) {
  auto mounts = ParseMountInfo("30 22 0:42 / /mnt/a\r\vb rw - tmpfs  rw,size=1k\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].mount_point, "/mnt/a\r\vb");
  EXPECT_EQ(mounts[0].source, "");
  EXPECT_EQ(mounts[0].super_options, "rw,size=1k");
}

TEST(MountInfoTest, FindsTheUppermostMountAtExactlyThatPath) {
  auto table = ParseMountInfo(kSample);
  EXPECT_EQ(TopmostAt(table, "/mnt/a b")->type, "tmpfs");
  EXPECT_EQ(TopmostAt(table, "/mnt/plain")->device, "0:44");
  EXPECT_FALSE(TopmostAt(table, "/mnt"));
}

TEST(MountInfoTest, EveryTruncationIsReadWithoutHarm) {
  const std::string sample = kSample;
  for (size_t size = 0; size <= sample.size(); ++size) {
    EXPECT_LE(ParseMountInfo(std::string_view(sample).substr(0, size)).size(), 4U);
  }
}

TEST(MountInfoTest, SaysWhatCannotBeRead) {
  auto mounts = ReadMountInfo("/proc/self/nothing");
  ASSERT_FALSE(mounts.ok());
  EXPECT_EQ(mounts.error().message, "cannot read /proc/self/nothing; is /proc mounted?");
}

TEST(MountInfoTest, TheOwnTableHasARoot) {
  auto table = ReadMountInfo();
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(TopmostAt(*table, "/"));
}

}  // namespace
}  // namespace cairnfs
