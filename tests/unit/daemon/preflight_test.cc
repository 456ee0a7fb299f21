#include "daemon/preflight.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "../../support/few_threads.h"
#include "base/machine_limits.h"
#include "daemon/size_text.h"
#include "io/buffer_pool.h"

namespace cairnfs::daemon {
namespace {

TEST(Preflight, PoolIsSharedWithTheReceivers) {
  Config config;
  EXPECT_TRUE(CheckPoolSuffices(config).ok());
  config.pool_size = 32 * kMiB;  // the smallest
  EXPECT_TRUE(CheckPoolSuffices(config).ok());
  config.pool_size = 64 * kMiB;
  config.receive_threads = 64;
  auto refused = CheckPoolSuffices(config);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      refused.error().message,
      "receive_threads = 64 is too many for pool_size = 64MiB: each receiving thread holds 2 MiB of the pool, and "
      "as much must be left for data; use receive_threads = 13 or fewer, or pool_size = \"267MiB\" or more");
  // What the message says would be right is right.
  config.receive_threads = 13;
  EXPECT_TRUE(CheckPoolSuffices(config).ok());
  config.receive_threads = 14;
  EXPECT_FALSE(CheckPoolSuffices(config).ok());
  config.receive_threads = 64;
  config.pool_size = 267 * kMiB;
  EXPECT_TRUE(CheckPoolSuffices(config).ok());
}

TEST(Preflight, APoolThatDoesNotFitTheMemoryIsRefused) {
  Config config;
  config.pool_size = kTiB * 1024;
  auto refused = CheckPoolSuffices(config);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "pool_size = 1024TiB does not fit the " + FormatSize(UsableMemory()) +
                                         " of memory that the daemon may use; give less");
}

// Every combination that is let in leaves buffers beside the reserve when each receiver holds its two.
TEST(Preflight, WhatIsLetInLeavesRoom) {
  for (uint64_t megabytes = 32; megabytes <= 512; megabytes += 7) {
    for (uint64_t receivers = 1; receivers <= 64; ++receivers) {
      Config config;
      config.pool_size = megabytes * kMiB;
      config.receive_threads = receivers;
      if (!CheckPoolSuffices(config).ok()) continue;
      const uint64_t buffers = config.pool_size / io::BufferPool::kBufferBytes;
      EXPECT_GE(buffers, 8 + 2 * receivers + 4) << megabytes << " MiB, " << receivers;
    }
  }
}

TEST(Preflight, NothingLiesInTheMountPoint) {
  namespace stdfs = std::filesystem;
  std::string pattern = (stdfs::temp_directory_path() / "cairnfs-preflight-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  stdfs::create_directory(folder + "/point");
  stdfs::create_directory_symlink("point", folder + "/link");
  Config config;
  config.mount_point = folder + "/point";
  for (const char* data : {"/point", "/point/", "/point/sub", "/link", "/link/a/b", "/other/../point"}) {
    config.data = folder + data;
    auto refused = CheckNothingIsHidden(config);
    ASSERT_FALSE(refused.ok()) << data;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message, "the data directory " + config.data + " lies in the mount point " +
                                           config.mount_point + ", which would hide it; give one elsewhere");
  }
  for (const char* data : {"", "/point2", "/point.data/sub", "/none/data"}) {
    config.data = folder + data;
    EXPECT_TRUE(CheckNothingIsHidden(config).ok()) << data;
  }
  config.mount_point = folder + "/link/";
  config.log_file = folder + "/point/log";
  EXPECT_FALSE(CheckNothingIsHidden(config).ok());
  config.log_file = folder + "/log";
  EXPECT_TRUE(CheckNothingIsHidden(config).ok());
  stdfs::remove_all(folder);
}

// In a process of its own: nobody may raise a hard limit again.
int WithFileLimits(rlim_t soft, rlim_t hard, const std::function<int()>& piece) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{soft, hard};
    _exit(setrlimit(RLIMIT_NOFILE, &limit) == 0 ? piece() : 125);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(Preflight, TooLowALimitOnFilesIsRefused) {
  for (rlim_t hard : {128, 256, 831}) {
    const int answer = WithFileLimits(64, hard, [hard] {
      auto refused = RaiseFileLimit(Config());
      if (refused.ok()) return 1;
      if (refused.error().code != ErrorCode::kInvalidArgument) return 2;
      const std::string expected = "up to 832 files are open at once, and the limit on open files is " +
                                   std::to_string(hard) +
                                   ": raise the hard limit to 832 or more (ulimit -Hn, LimitNOFILE= of the unit)";
      return refused.error().message == expected ? 0 : 3;
    });
    EXPECT_EQ(answer, 0) << hard;
  }
}

TEST(Preflight, TheLimitOnFilesIsRaised) {
  const int answer = WithFileLimits(64, 832, [] {
    if (!RaiseFileLimit(Config()).ok()) return 1;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur != 832) return 2;
    if (FilesToSpare(Config()) != 0) return 5;
    limit.rlim_cur = 800;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || FilesToSpare(Config()) != 0) return 6;
    Config config;
    config.metadata = "etcd://10.0.0.1:2379";
    if (RaiseFileLimit(config).ok()) return 3;
    config = Config();
    config.serve_metadata = "10.0.0.1:7402";
    return RaiseFileLimit(config).ok() ? 4 : 0;
  });
  EXPECT_EQ(answer, 0);
}

TEST(Preflight, FilesToSpareAreThoseBeyondTheNeed) {
  EXPECT_EQ(WithFileLimits(
                64, 1000, [] { return RaiseFileLimit(Config()).ok() && FilesToSpare(Config()) == 1000 - 832 ? 0 : 1; }),
            0);
}

TEST(Preflight, ThreadsOfTheDefaultsStart) {
  auto started = CheckThreadsCanStart(Config());
  EXPECT_TRUE(started.ok()) << started.error().message;
}

TEST(Preflight, ALimitOnThreadsNamesTheKeyThatWantsMost) {
  if (!MayLimitThreads()) GTEST_SKIP() << "becomes another user";
  const int answer = WithFewThreads(100, [] {
    Config config;
    if (!CheckThreadsCanStart(config).ok() && std::thread::hardware_concurrency() < 8) return 1;
    config.worker_threads = 1024;
    auto refused = CheckThreadsCanStart(config);
    if (refused.ok()) return 2;
    const std::string& message = refused.error().message;
    std::fprintf(stderr, "%s\n", message.c_str());
    if (message.find("worker_threads = 1024") == std::string::npos) return 3;
    if (message.find("lets only 9") == std::string::npos) return 4;  // a sanitizer has a thread of its own
    return 0;
  });
  EXPECT_EQ(answer, 0);
}

}  // namespace
}  // namespace cairnfs::daemon
