#include "daemon/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/types.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// A made-up /proc and /sys.
class MachineMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (stdfs::temp_directory_path() / "cairnfs-memory-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    Write("proc/meminfo", "MemFree:  1 kB\nMemTotal:       16777216 kB\nSwapTotal: 5 kB\n");
  }
  void TearDown() override { stdfs::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    stdfs::create_directories(stdfs::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << text;
  }
  uint64_t GiBs() { return UsableMemory(root_) / kGiB; }

  std::string root_;
};

TEST_F(MachineMemoryTest, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(GiBs(), 16U);
  stdfs::remove(root_ + "/proc/meminfo");
  EXPECT_EQ(UsableMemory(root_), UINT64_MAX);
  Write("proc/meminfo", "MemTotal: what\n");
  EXPECT_EQ(UsableMemory(root_), UINT64_MAX);
}

TEST_F(MachineMemoryTest, SecondVersionCountsTheLeastUpwards) {
  Write("proc/self/cgroup", "0::/system.slice/cairnfs.service\n");
  Write("sys/fs/cgroup/system.slice/cairnfs.service/memory.max", "max\n");
  EXPECT_EQ(GiBs(), 16U);
  Write("sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
  EXPECT_EQ(GiBs(), 4U);
  Write("sys/fs/cgroup/system.slice/cairnfs.service/memory.max", "2147483648\n");
  EXPECT_EQ(GiBs(), 2U);
}

TEST_F(MachineMemoryTest, FirstVersionCountsTheLeastUpwards) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/17\n3:cpuset:/memory\n0::/\n");
  Write("sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(GiBs(), 16U);
  Write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "3221225472\n");
  EXPECT_EQ(GiBs(), 3U);
}

// In a container, /proc may name the group by its path on the host, which the container does not see.
TEST_F(MachineMemoryTest, TheRootOfAHierarchyCounts) {
  Write("proc/self/cgroup", "4:memory:/docker/0123\n0::/../../docker/0123\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5368709120\n");
  EXPECT_EQ(GiBs(), 5U);
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(GiBs(), 1U);
}

TEST_F(MachineMemoryTest, StrangeLinesArePassedOver) {
  Write("proc/self/cgroup", "\n0\n0:\n:::\n::/\nmemory\n1:memory:relative\n");
  EXPECT_EQ(GiBs(), 16U);
}

TEST(MachineMemory, OfThisMachineIsSomething) {
  EXPECT_GE(UsableMemory(), 16 * kMiB);
  EXPECT_NE(UsableMemory(), UINT64_MAX);
}

}  // namespace
}  // namespace cairnfs::daemon
