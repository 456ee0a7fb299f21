#include "fuse/mount_point.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fuse/device.h"
#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

namespace stdfs = std::filesystem;

class MountPointTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (stdfs::temp_directory_path() / "cairnfs-mount-point-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    room_ = stdfs::canonical(pattern);
  }
  void TearDown() override { stdfs::remove_all(room_); }

  std::string Path(const char* name) const { return (room_ / name).string(); }

  stdfs::path room_;
};

void ExpectError(const Result<std::string>& result, ErrorCode code, std::string_view part) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

TEST_F(MountPointTest, AnEmptyDirectoryIsTakenByItsCanonicalName) {
  stdfs::create_directory(room_ / "real");
  stdfs::create_directory_symlink("real", room_ / "link");
  auto prepared = PrepareMountPoint(Path("link") + "/");
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  EXPECT_EQ(*prepared, Path("real"));
}

TEST_F(MountPointTest, AMissingOneIsNamedWithTheRemedy) {
  ExpectError(PrepareMountPoint(Path("absent")), ErrorCode::kNotFound, "mkdir -p " + Path("absent"));
}

TEST_F(MountPointTest, AFileIsNoMountPoint) {
  std::ofstream(room_ / "file") << "x";
  ExpectError(PrepareMountPoint(Path("file")), ErrorCode::kNotDirectory, "is not a directory");
}

TEST_F(MountPointTest, WhatWouldBeHiddenIsNamed) {
  stdfs::create_directories(room_ / "full" / "precious");
  ExpectError(PrepareMountPoint(Path("full")), ErrorCode::kNotEmpty, "\"precious\"");
}

TEST_F(MountPointTest, AnEmptyPathIsRefused) {
  ExpectError(PrepareMountPoint(""), ErrorCode::kInvalidArgument, "give a directory");
}

TEST_F(MountPointTest, OnlyOwnMountsAreUnmounted) {
  Status status = Unmount(room_.string(), Unmounting::kUnlessBusy);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  status = Unmount("/proc", Unmounting::kUnlessBusy);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  EXPECT_NE(status.error().message.find("of type proc"), std::string::npos) << status.error().message;
}

TEST(KernelOptionsTest, WordsBecomeFlagsAndLaterOnesWin) {
  auto parsed = ParseKernelOptions({"ro", "suid", "noexec", "rw", "nosuid", "defaults", "x-systemd.requires=a"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->flags, static_cast<unsigned long>(MS_NOSUID | MS_NODEV | MS_NOEXEC));
}

TEST(KernelOptionsTest, SetIdFilesAndDevicesCountOnlyWhereAskedFor) {
  EXPECT_EQ(ParseKernelOptions({})->flags, static_cast<unsigned long>(MS_NOSUID | MS_NODEV));
  EXPECT_EQ(ParseKernelOptions({"suid"})->flags, static_cast<unsigned long>(MS_NODEV));
  EXPECT_EQ(ParseKernelOptions({"dev", "suid"})->flags, 0UL);
}

TEST(KernelOptionsTest, AnUnknownWordIsNamed) {
  auto parsed = ParseKernelOptions({"nosuit"});
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(parsed.error().message.find("\"nosuit\""), std::string::npos);
  EXPECT_NE(parsed.error().message.find("nosuid"), std::string::npos);
}

}  // namespace
}  // namespace cairnfs::fuse
