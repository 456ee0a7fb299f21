#include "fuse/mount_table.h"

#include <gtest/gtest.h>

namespace cairnfs::fuse {
namespace {

constexpr const char* kSample =
    "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
    "30 22 0:42 / /mnt/a\\040b rw,relatime shared:9 master:2 - fuse.cairnfs cairn\\040fs rw,user_id=0\n"
    "31 30 0:43 / /mnt/a\\040b rw - tmpfs none rw\n"
    "nonsense\n"
    "32 22 0:44 / /mnt/plain rw - fuse.cairnfs cairnfs rw\n";

TEST(MountTableTest, ReadsFieldsWithAndWithoutOptionalOnes) {
  auto table = ParseMountInfo(kSample);
  ASSERT_EQ(table.size(), 4U);
  EXPECT_EQ(table[0].mount_point, "/");
  EXPECT_EQ(table[0].type, "ext4");
  EXPECT_EQ(table[1].device, "0:42");
  EXPECT_EQ(table[1].mount_point, "/mnt/a b");
  EXPECT_EQ(table[1].type, kFilesystemType);
  EXPECT_EQ(table[1].source, "cairn fs");
  EXPECT_EQ(table[1].options, "rw,relatime");
  EXPECT_EQ(table[1].super_options, "rw,user_id=0");
  EXPECT_EQ(table[3].mount_point, "/mnt/plain");
}

TEST(MountTableTest, FindsTheUppermostMountAtExactlyThatPath) {
  auto table = ParseMountInfo(kSample);
  EXPECT_EQ(FindMount(table, "/mnt/a b")->type, "tmpfs");
  EXPECT_EQ(FindMount(table, "/mnt/plain")->device, "0:44");
  EXPECT_FALSE(FindMount(table, "/mnt"));
}

TEST(MountTableTest, EveryTruncationIsReadWithoutHarm) {
  const std::string sample = kSample;
  for (size_t size = 0; size <= sample.size(); ++size) {
    EXPECT_LE(ParseMountInfo(std::string_view(sample).substr(0, size)).size(), 4U);
  }
}

TEST(MountTableTest, TheOwnTableHasARoot) {
  auto table = ReadMountTable();
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(FindMount(*table, "/"));
}

}  // namespace
}  // namespace cairnfs::fuse
