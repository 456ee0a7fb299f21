// Decoding of flags that come with requests.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/stat.h>

#include "fuse/ops.h"

namespace cairnfs::fuse {
namespace {

TEST(OpenFlagsTest, AccessModes) {
  EXPECT_TRUE(OpenFlagsOf(O_RDONLY).read);
  EXPECT_FALSE(OpenFlagsOf(O_RDONLY).write);
  EXPECT_FALSE(OpenFlagsOf(O_WRONLY).read);
  EXPECT_TRUE(OpenFlagsOf(O_WRONLY).write);
  EXPECT_TRUE(OpenFlagsOf(O_RDWR).read);
  EXPECT_TRUE(OpenFlagsOf(O_RDWR).write);
}

TEST(OpenFlagsTest, BothKindsOfSyncAreSync) {
  EXPECT_FALSE(OpenFlagsOf(O_WRONLY).sync);
  EXPECT_TRUE(OpenFlagsOf(O_WRONLY | O_SYNC).sync);
  EXPECT_TRUE(OpenFlagsOf(O_WRONLY | O_DSYNC).sync);
}

TEST(OpenFlagsTest, Truncate) {
  EXPECT_TRUE(OpenFlagsOf(O_WRONLY | O_TRUNC).truncate);
  EXPECT_FALSE(OpenFlagsOf(O_WRONLY | O_APPEND).truncate);
}

TEST(OpenFlagsTest, NoAccessTime) {
  EXPECT_TRUE(OpenFlagsOf(O_RDONLY | O_NOATIME).no_atime);
  EXPECT_FALSE(OpenFlagsOf(O_RDONLY).no_atime);
}

struct stat Values() {
  struct stat values {};
  values.st_mode = S_IFREG | 06755;
  values.st_uid = 1;
  values.st_gid = 2;
  values.st_size = 3;
  values.st_atim = {4, 5};
  values.st_mtim = {6, 7};
  return values;
}

TEST(SetAttrTest, OnlyWhatIsMarkedIsSet) {
  auto changes = SetAttrRequestOf(FATTR_MODE, Values());
  EXPECT_EQ(changes.mode, 06755U);
  EXPECT_FALSE(changes.uid || changes.gid || changes.size || changes.atime || changes.mtime);
  EXPECT_FALSE(changes.atime_now || changes.mtime_now || changes.kill_suid_sgid);
}

TEST(SetAttrTest, NowIsNotATime) {
  auto changes = SetAttrRequestOf(FATTR_ATIME | FATTR_ATIME_NOW | FATTR_MTIME, Values());
  EXPECT_TRUE(changes.atime_now);
  EXPECT_FALSE(changes.atime);
  EXPECT_FALSE(changes.mtime_now);
  EXPECT_EQ(*changes.mtime, (Timestamp{6, 7}));
}

TEST(SetAttrTest, ChownTakesSetUserIdAway) {
  EXPECT_TRUE(SetAttrRequestOf(FATTR_UID, Values()).kill_suid_sgid);
  EXPECT_TRUE(SetAttrRequestOf(FATTR_GID, Values()).kill_suid_sgid);
  EXPECT_TRUE(SetAttrRequestOf(0, Values()).kill_suid_sgid);  // chown(-1, -1)
}

TEST(SetAttrTest, TruncationDoesSoWhenTheKernelSays) {
  EXPECT_FALSE(SetAttrRequestOf(FATTR_SIZE, Values()).kill_suid_sgid);
  EXPECT_TRUE(SetAttrRequestOf(FATTR_SIZE | (1U << 11), Values()).kill_suid_sgid);
}

}  // namespace
}  // namespace cairnfs::fuse
