#include "control/mount_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace cairnfs::control {
namespace {

MountEntry Mount(const std::string& root, const std::string& mount_point) {
  MountEntry entry;
  entry.root = root;
  entry.mount_point = mount_point;
  return entry;
}

TEST(ListMounts, FindsOurs) {
  const std::string path = testing::TempDir() + "/mountinfo." + std::to_string(getpid());
  std::ofstream(path) << "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
                         "40 22 0:51 /run\\040a /mnt/cairnfs rw,nosuid shared:9 - fuse.cairnfs /var/lib/cairnfs rw\n"
                         "41 22 0:52 / /mnt/with\\040blank rw - fuse.cairnfs /data/b\\134c rw\n"
                         "42 22 0:53 / /mnt/other rw - fuse.sshfs host:/x rw\n"
                         "garbage\n";
  auto mounts = ListMounts(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(mounts.ok());
  ASSERT_EQ(mounts->size(), 2U);
  EXPECT_EQ(mounts->at(0).mount_point, "/mnt/cairnfs");
  EXPECT_EQ(mounts->at(0).source, "/var/lib/cairnfs");
  EXPECT_EQ(mounts->at(0).device, "0:51");
  EXPECT_EQ(mounts->at(0).root, "/run a");
  EXPECT_EQ(mounts->at(1).mount_point, "/mnt/with blank");
  EXPECT_EQ(mounts->at(1).source, "/data/b\\c");
}

TEST(PathInFilesystem, BeginsBelowTheRoot) {
  const MountEntry whole = Mount("/", "/nowhere/mount");
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount"), "");
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount//"), "");
  EXPECT_EQ(PathInFilesystem(whole, "/nowhere/mount/run/../run/step-1.tmp/"), "run/step-1.tmp");
  const MountEntry part = Mount("/run/a b", "/nowhere/bound");
  EXPECT_EQ(PathInFilesystem(part, "/nowhere/bound"), "run/a b");
  EXPECT_EQ(PathInFilesystem(part, "/nowhere/bound/x"), "run/a b/x");
  const MountEntry at_root = Mount("/", "/");
  EXPECT_EQ(PathInFilesystem(at_root, "/nowhere/x"), "nowhere/x");
  EXPECT_EQ(PathInFilesystem(at_root, "/"), "");
}

TEST(FindMount, SaysWhenThereIsNone) {
  auto mount = FindMount("/proc");
  ASSERT_FALSE(mount.ok());
  EXPECT_EQ(mount.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(mount.error().message, "no CairnFS is mounted at /proc");
}

}  // namespace
}  // namespace cairnfs::control
