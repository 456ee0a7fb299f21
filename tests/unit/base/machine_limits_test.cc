#include "base/machine_limits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/types.h"

namespace cairnfs {
namespace {

namespace stdfs = std::filesystem;

// A made-up /proc and /sys.
class MachineLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (stdfs::temp_directory_path() / "cairnfs-limits-XXXXXX").string();
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

TEST_F(MachineLimitsTest, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(GiBs(), 16U);
  stdfs::remove(root_ + "/proc/meminfo");
  EXPECT_EQ(UsableMemory(root_), UINT64_MAX);
  Write("proc/meminfo", "MemTotal: what\n");
  EXPECT_EQ(UsableMemory(root_), UINT64_MAX);
}

TEST_F(MachineLimitsTest, SecondVersionCountsTheLeastUpwards) {
  Write("proc/self/cgroup", "0::/system.slice/cairnfs.service\n");
  Write("sys/fs/cgroup/system.slice/cairnfs.service/memory.max", "max\n");
  EXPECT_EQ(GiBs(), 16U);
  Write("sys/fs/cgroup/system.slice/memory.max", "4294967296\n");
  EXPECT_EQ(GiBs(), 4U);
  Write("sys/fs/cgroup/system.slice/cairnfs.service/memory.max", "2147483648\n");
  EXPECT_EQ(GiBs(), 2U);
}

TEST_F(MachineLimitsTest, FirstVersionCountsTheLeastUpwards) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/17\n3:cpuset:/memory\n0::/\n");
  Write("sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes", "9223372036854771712\n");  // none
  EXPECT_EQ(GiBs(), 16U);
  Write("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "3221225472\n");
  EXPECT_EQ(GiBs(), 3U);
}

// In a container, /proc may name the group by its path on the host, which the container does not see.
TEST_F(MachineLimitsTest, TheRootOfAHierarchyCounts) {
  Write("proc/self/cgroup", "4:memory:/docker/0123\n0::/../../docker/0123\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5368709120\n");
  EXPECT_EQ(GiBs(), 5U);
  Write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(GiBs(), 1U);
}

TEST_F(MachineLimitsTest, StrangeLinesArePassedOver) {
  Write("proc/self/cgroup", "\n0\n0:\n:::\n::/\nmemory\n1:memory:relative\n");
  EXPECT_EQ(GiBs(), 16U);
}

TEST_F(MachineLimitsTest, CoresAreThoseOfTheMachineOrOfTheQuota) {
  const unsigned all = std::max(1U, std::thread::hardware_concurrency());
  EXPECT_EQ(UsableCores(root_), all);
  Write("proc/self/cgroup", "0::/jobs/17\n");
  Write("sys/fs/cgroup/jobs/17/cpu.max", "max 100000\n");
  EXPECT_EQ(UsableCores(root_), all);
  Write("sys/fs/cgroup/jobs/17/cpu.max", "1000000000 100000\n");
  EXPECT_EQ(UsableCores(root_), all) << "a quota of more than there is";
  Write("sys/fs/cgroup/jobs/cpu.max", "20000 100000\n");
  EXPECT_EQ(UsableCores(root_), 1U) << "a fifth of a core";
  Write("sys/fs/cgroup/jobs/cpu.max", "110000 100000\n");
  EXPECT_EQ(UsableCores(root_), std::min(all, 2U)) << "rounded up";
  Write("sys/fs/cgroup/jobs/cpu.max", "5 0\n");
  EXPECT_EQ(UsableCores(root_), all);
}

TEST_F(MachineLimitsTest, CoresOfTheFirstVersion) {
  Write("proc/self/cgroup", "4:cpu,cpuacct:/jobs/17\n");
  Write("sys/fs/cgroup/cpu/jobs/17/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/jobs/17/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(UsableCores(root_), std::max(1U, std::thread::hardware_concurrency()));
  Write("sys/fs/cgroup/cpu/jobs/17/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(UsableCores(root_), 1U);
}

// Those that a stranger can make up are passed over: any name, with set-id programs too.
TEST_F(MachineLimitsTest, DaemonsAreThoseOfRootAndOfTheUser) {
  EXPECT_EQ(DaemonsBeside(root_), 0U);
  auto process = [&](const std::string& pid, const std::string& program, const std::string& name, unsigned real,
                     unsigned effective) {
    const std::string of = std::to_string(effective);
    Write("proc/" + pid + "/comm", name + "\n");
    Write("proc/" + pid + "/status",
          "Name:\t" + name + "\nUid:\t" + std::to_string(real) + "\t" + of + "\t" + of + "\t" + of + "\n");
    if (!program.empty()) stdfs::create_symlink(program, root_ + "/proc/" + pid + "/exe");
  };
  const unsigned self = geteuid(), stranger = self + 12345;
  process("10", "/usr/sbin/cairnfsd", "cairnfsd", 0, 0);
  EXPECT_EQ(DaemonsBeside(root_), 1U);
  process("11", "/usr/sbin/cairnfsd (deleted)", "cairnfsd", self, self);
  EXPECT_EQ(DaemonsBeside(root_), 2U);
  process("12", "/usr/sbin/cairnfsd", "cairnfsd", stranger, stranger);
  process("13", "/usr/sbin/cairnfsd", "cairnfsd", stranger, 0);
  process("14", "/usr/bin/sudo", "cairnfsd", 0, 0);
  process("15", "", "cairnfsd", 0, 0);  // a thread of the kernel, or it has ended
  process(std::to_string(getpid()), "/usr/sbin/cairnfsd", "cairnfsd", 0, 0);
  process("x16", "/usr/sbin/cairnfsd", "cairnfsd", 0, 0);
  stdfs::create_directories(root_ + "/proc/17");
  Write("proc/18/status", "Uid:\t0\n");
  stdfs::create_symlink("/usr/sbin/cairnfsd", root_ + "/proc/18/exe");
  EXPECT_EQ(DaemonsBeside(root_), 2U);
}

TEST(MachineLimits, OfThisMachineIsSomething) {
  EXPECT_GE(UsableMemory(), 16 * kMiB);
  EXPECT_NE(UsableMemory(), UINT64_MAX);
}

}  // namespace
}  // namespace cairnfs
