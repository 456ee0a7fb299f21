// The oracle itself: on a plain directory without a crash every promise holds, and each kind of damage is found.
#include "oracle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "disk_stalls.h"
#include "workload.h"

namespace cairnfs::testing {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kStepsMin = 200;

class OracleTest : public ::testing::Test {
 protected:
  OracleTest() : sequence_([] { return 0; }) {
    char pattern[] = "/tmp/cairnfs-oracle-XXXXXX";
    root_ = mkdtemp(pattern);
    for (const char* name : {"a", "b"}) {
      writers_.push_back(Writer{name, {}});
      stdfs::create_directory(root_ + "/" + name);
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < writers_.size(); ++i) {
      threads.emplace_back([this, i] {
        WorkloadOptions options;
        options.root = root_;
        options.seed = 17 + i;
        options.file_bytes_max = 20000;
        Workload workload(options, writers_[i], sequence_);
        // Each sync takes as long as the disk is busy with others.
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        do {
          std::atomic<bool> stop{false};
          std::thread timer([&stop] {
            usleep(400000);
            stop = true;
          });
          workload.Run(stop);
          timer.join();
        } while (writers_[i].track.size() <= kStepsMin && workload.failure().empty() &&
                 std::chrono::steady_clock::now() < end);
        EXPECT_EQ(workload.failure(), "");
      });
    }
    for (std::thread& thread : threads) thread.join();
    crash_.time_ns = NowNs();
  }
  ~OracleTest() override { stdfs::remove_all(root_); }

  std::vector<std::string> Violations() { return Judge(writers_, crash_, root_).violations; }
  // A file that is surely promised: everything is, after a sync point at the end.
  std::string SyncAllAndPickFile() {
    Record& record = writers_[0].track.emplace_back();
    record.step = Step::kFsyncDirectory;
    record.is_sync_point = true;
    sequence_.Begin(record);
    sequence_.End(record);
    for (const auto& entry : stdfs::recursive_directory_iterator(root_)) {
      if (entry.is_regular_file() && !entry.is_symlink() && entry.file_size() > 100) return entry.path();
    }
    return "";
  }

  const int64_t begin_ns_ = NowNs();  // of what the writers did
  Sequence sequence_;
  std::string root_;
  std::vector<Writer> writers_;
  CrashPoint crash_;
};

TEST_F(OracleTest, WithoutACrashEverythingIsThere) {
  EXPECT_GT(writers_[0].track.size(), kStepsMin);
  EXPECT_EQ(Violations(), std::vector<std::string>());
}

TEST_F(OracleTest, FindsAChangedByte) {
  std::string path = SyncAllAndPickFile();
  chmod(path.c_str(), 0600);
  struct stat info;
  stat(path.c_str(), &info);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(50);
  char byte = static_cast<char>(file.get() ^ 0x40);
  file.seekp(50);
  file.put(byte);
  file.close();
  EXPECT_FALSE(Violations().empty());
}

TEST_F(OracleTest, FindsAShorterFile) {
  std::string path = SyncAllAndPickFile();
  stdfs::resize_file(path, stdfs::file_size(path) - 1);
  EXPECT_FALSE(Violations().empty());
}

TEST_F(OracleTest, FindsALongerFile) {
  std::string path = SyncAllAndPickFile();
  stdfs::resize_file(path, stdfs::file_size(path) + 1);
  EXPECT_FALSE(Violations().empty());
}

TEST_F(OracleTest, FindsALostName) {
  unlink(SyncAllAndPickFile().c_str());
  EXPECT_FALSE(Violations().empty());
}

TEST_F(OracleTest, FindsALostWriter) {
  SyncAllAndPickFile();
  stdfs::remove_all(root_ + "/b");
  stdfs::create_directory(root_ + "/b");
  EXPECT_FALSE(Violations().empty());
}

// What a machine did not get on with for a while has that much longer to become durable.
TEST_F(OracleTest, CountsNoTimeInWhichTheMachineStoodStill) {
  for (Writer& writer : writers_) {
    for (Record& record : writer.track) record.is_sync_point = false;
    stdfs::remove_all(root_ + "/" + writer.name);
    stdfs::create_directory(root_ + "/" + writer.name);
  }
  crash_.time_ns = NowNs() + 6'000'000'000;
  crash_.stalled_ns = crash_.time_ns - begin_ns_;
  EXPECT_EQ(Violations(), std::vector<std::string>());
  crash_.stalled_ns = 0;
  EXPECT_FALSE(Violations().empty());
}

TEST(DiskStallsTest, AreThoseOfTheTimeThatIsAskedFor) {
  char pattern[] = "/tmp/cairnfs-stalls-XXXXXX";
  const std::string root = mkdtemp(pattern);
  const int64_t begin = NowNs();
  {
    DiskStalls stalls(root + "/file", 0);
    usleep(300'000);
    stalls.Stop();
    const int64_t end = NowNs();
    EXPECT_GT(stalls.Before(end, end - begin), 10'000'000);  // a sleep at least
    EXPECT_LE(stalls.Before(end, end - begin), end - begin);
    EXPECT_EQ(stalls.Before(begin, end - begin), 0);
  }
  EXPECT_TRUE(stdfs::is_empty(root));
  stdfs::remove_all(root);
}

// Without a sync point one writer's names may be lost, but not while later ones of another writer survived.
TEST_F(OracleTest, FindsABrokenOrderBetweenWriters) {
  for (Writer& writer : writers_) {
    writer.track.clear();
    stdfs::remove_all(root_ + "/" + writer.name);
    stdfs::create_directory(root_ + "/" + writer.name);
    Record& record = writer.track.emplace_back();
    record.step = Step::kMkdir;
    record.a = "d";
    record.mode = 0755;
    sequence_.Begin(record);
    sequence_.End(record);
  }
  crash_.time_ns = NowNs();
  mkdir((root_ + "/a/d").c_str(), 0755);
  EXPECT_TRUE(Violations().empty());  // the later one, b's, was lost
  rmdir((root_ + "/a/d").c_str());
  mkdir((root_ + "/b/d").c_str(), 0755);
  EXPECT_FALSE(Violations().empty());
}

}  // namespace
}  // namespace cairnfs::testing
