// What retention does where a checkpoint cannot be moved to the trash.
#include "removal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "cairnfs/cairnfs.h"

namespace {
int planted_errno = 0;  // of rmdir(2) in this program; 0: it is the kernel's
}  // namespace

extern "C" int rmdir(const char* path) noexcept {
  if (planted_errno == 0) return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
  errno = planted_errno;
  return -1;
}

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

class RemovalTest : public testing::Test {
 protected:
  RemovalTest() : before_(stdfs::current_path()) {
    std::string scratch = testing::TempDir() + "/removal-XXXXXX";
    EXPECT_NE(mkdtemp(scratch.data()), nullptr);
    scratch_ = scratch;
    stdfs::current_path(scratch_);
    stdfs::create_directories("step-1/below");
    struct stat info = {};
    EXPECT_EQ(stat("step-1", &info), 0);
    inode_ = info.st_ino;
  }
  // As the daemon says it of what nobody has open.
  void SetUp() override {
    if (setxattr("step-1", CAIRNFS_XATTR_OPEN_FILES, "0", 1, 0) != 0) GTEST_SKIP() << "no attributes of users' here";
  }
  ~RemovalTest() override {
    planted_errno = 0;
    stdfs::current_path(before_);
    stdfs::remove_all(scratch_);
  }
  Result<Removal::Outcome> Remove() const { return Removal(OwnOpens::kNone, {}).Remove("step-1", inode_); }

  const stdfs::path before_;
  stdfs::path scratch_;
  uint64_t inode_ = 0;
};

// An error may be gone the next time; what is removed past the trash is not there the next time.
TEST_F(RemovalTest, AnErrorOfTheTrashRemovesNothing) {
  for (const int error : {EIO, ETIMEDOUT, EINTR, ESTALE, ENOSPC, EPERM}) {
    planted_errno = error;
    const auto removed = Remove();
    ASSERT_FALSE(removed.ok()) << error << ": " << removed->why_not;
    EXPECT_NE(removed.error().message.find("cannot be moved to the trash"), std::string::npos);
    EXPECT_TRUE(stdfs::is_directory("step-1/below")) << "it has its name back, after error " << error;
  }
}

TEST_F(RemovalTest, WhatIsPinnedStaysAndIsNoFailure) {
  planted_errno = EBUSY;
  const auto removed = Remove();
  ASSERT_TRUE(removed.ok());
  EXPECT_FALSE(removed->removed);
  EXPECT_NE(removed->why_not.find("pinned or held"), std::string::npos) << removed->why_not;
  EXPECT_TRUE(stdfs::is_directory("step-1/below"));
}

}  // namespace
}  // namespace cairnfs::tools
