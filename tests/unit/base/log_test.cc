#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace cairnfs {
namespace {

namespace stdfs = std::filesystem;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (stdfs::temp_directory_path() / "cairnfs-log-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    options_.file = folder_ + "/some.log";
    options_.file_bytes_max = 4096;
  }
  void TearDown() override {
    EXPECT_TRUE(InitLog({}).ok());  // lets the file go
    stdfs::remove_all(folder_);
  }
  void WriteMuch() {
    for (int i = 0; i < 1000; ++i) spdlog::info("one of many lines, {}", i);
  }
  size_t CountFiles() const {
    return static_cast<size_t>(std::distance(stdfs::directory_iterator(folder_), stdfs::directory_iterator()));
  }

  std::string folder_;
  LogOptions options_;
};

TEST_F(LogTest, AFileAndTwoOlderOnesAreAll) {
  ASSERT_TRUE(InitLog(options_).ok());
  WriteMuch();
  EXPECT_EQ(CountFiles(), 3U);
  for (const char* name : {"some.log", "some.1.log", "some.2.log"}) {
    EXPECT_LE(stdfs::file_size(folder_ + "/" + name), 4096U) << name;
  }
}

TEST_F(LogTest, ASymbolicLinkStays) {
  stdfs::create_symlink("target", options_.file);
  ASSERT_TRUE(InitLog(options_).ok());
  WriteMuch();
  EXPECT_TRUE(stdfs::is_symlink(options_.file));
  EXPECT_EQ(CountFiles(), 2U);
  EXPECT_GT(stdfs::file_size(folder_ + "/target"), 10 * 4096U);
}

TEST_F(LogTest, DevicesTakeALog) {
  for (const char* file : {"/dev/null", "/dev/stderr"}) {
    options_.file = file;
    options_.level = "off";
    auto opened = InitLog(options_);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
  }
}

TEST_F(LogTest, NoDirectoryIsMade) {
  options_.file = folder_ + "/no/such/some.log";
  auto opened = InitLog(options_);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_NE(opened.error().message.find("the directory " + folder_ + "/no/such does not exist"), std::string::npos);
  EXPECT_EQ(CountFiles(), 0U);
}

}  // namespace
}  // namespace cairnfs
