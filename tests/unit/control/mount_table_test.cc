#include "control/mount_table.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

constexpr const char* kText =
    "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    "40 22 0:51 / /mnt/cairnfs rw,nosuid shared:9 - fuse.cairnfs /var/lib/cairnfs rw,user_id=0\n"
    "41 22 0:52 / /mnt/with\\040blank rw - fuse.cairnfs /data/b\\134c rw\n"
    "42 22 0:53 / /mnt/other rw - fuse.sshfs host:/x rw\n"
    "garbage\n";

TEST(ParseMountInfo, FindsOurMounts) {
  auto mounts = ParseMountInfo(kText);
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].mount_point, "/mnt/cairnfs");
  EXPECT_EQ(mounts[0].data, "/var/lib/cairnfs");
  EXPECT_EQ(mounts[0].device_minor, 51U);
  EXPECT_EQ(mounts[1].mount_point, "/mnt/with blank");
  EXPECT_EQ(mounts[1].data, "/data/b\\c");
}

TEST(ParseMountInfo, SurvivesEveryTruncation) {
  std::string text = kText;
  for (size_t size = 0; size <= text.size(); ++size) EXPECT_LE(ParseMountInfo(text.substr(0, size)).size(), 2U);
}

TEST(PathInFilesystem, BeginsBelowTheRoot) {
  const MountEntry whole = {"/nowhere/mount", "/data", 0, "/"};
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount"), "");
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount//"), "");
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount/run/../run/step-1.tmp/"), "run/step-1.tmp");
  const MountEntry part = {"/nowhere/bound", "/data", 0, "/run/a b"};
  EXPECT_EQ(PathInFilesystem(part, "/nowhere/bound"), "run/a b");
  EXPECT_EQ(PathInFilesystem(part, "/nowhere/bound/x"), "run/a b/x");
  const MountEntry at_root = {"/", "/data", 0, "/"};
  EXPECT_EQ(PathInFilesystem(at_root, "/nowhere/x"), "nowhere/x");
  EXPECT_EQ(PathInFilesystem(at_root, "/"), "");
}

TEST(ParseMountInfo, TellsWhatOfTheFilesystemIsMounted) {
  auto mounts = ParseMountInfo("40 22 0:51 /run\\040a /bound rw - fuse.cairnfs /data rw\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].root, "/run a");
}

TEST(FindMount, SaysWhenThereIsNone) {
  auto mount = FindMount("/proc");
  ASSERT_FALSE(mount.ok());
  EXPECT_EQ(mount.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(mount.error().message, "no CairnFS is mounted at /proc");
}

}  // namespace
}  // namespace cairnfs::control
