#include "daemon/volume.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace cairnfs::daemon {
namespace {

class VolumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-volume-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.pool_size = 32 * kMiB;
    config_.reserve = 8 * kMiB;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  fs::FsOptions Options() {
    auto directory = DataDirectory::Open({folder_ + "/data", true, "testing"});
    EXPECT_TRUE(directory.ok()) << directory.error().message;
    auto volume = Volume::Open(**directory, config_);
    EXPECT_TRUE(volume.ok()) << volume.error().message;
    return (*volume)->FileSystemOptions();
  }

  std::string folder_;
  Config config_;
};

// With none at all, the collector would run without a pause.
TEST_F(VolumeTest, NoCollectAfterIsTheDefault) {
  config_.collect_after = 0;
  EXPECT_EQ(Options().collect_after_bytes, fs::FsOptions().collect_after_bytes);
  config_.collect_after = 5;
  EXPECT_EQ(Options().collect_after_bytes, 5U);
}

}  // namespace
}  // namespace cairnfs::daemon
