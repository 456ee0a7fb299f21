#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

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

TEST_F(LogTest, LinesOfAMinuteAreBounded) {
  options_.lines_per_minute_max = 10;
  ASSERT_TRUE(InitLog(options_).ok());
  WriteMuch();
  std::ifstream log(options_.file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 11U);
  EXPECT_NE(lines[9].find("one of many lines, 9"), std::string::npos) << lines[9];
  EXPECT_NE(lines[10].find("too many lines"), std::string::npos) << lines[10];
}

TEST_F(LogTest, WhatItsFilesTakeOfADiskIsKnown) {
  ASSERT_TRUE(InitLog(options_).ok());
  EXPECT_EQ(LogBytesMaxOn(folder_), 3 * options_.file_bytes_max);
  EXPECT_EQ(LogBytesMaxOn("/proc"), 0U);
  ASSERT_TRUE(InitLog({}).ok());
  EXPECT_EQ(LogBytesMaxOn(folder_), 0U);
}

TEST_F(LogTest, ANameBeginsNoLineOfItsOwn) {
  ASSERT_TRUE(InitLog(options_).ok());
  spdlog::error("'a\n2026-01-01T00:00:00.000+0000 error made up' is lost");
  std::ifstream log(options_.file);
  std::string first, second;
  std::getline(log, first);
  EXPECT_NE(first.find("'a\\x0a2026-01-01"), std::string::npos) << first;
  EXPECT_FALSE(std::getline(log, second)) << second;
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

// What a process whose stderr is a file, and that has this JOURNAL_STREAM, writes there.
std::string WrittenToStderr(const std::string& file, const std::function<std::string(const struct stat&)>& journal) {
  const pid_t child = fork();
  if (child == 0) {
    int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct stat info;
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || fstat(fd, &info) != 0) _exit(1);
    setenv("JOURNAL_STREAM", journal(info).c_str(), 1);
    LogOptions options;
    options.level = "trace";
    if (!InitLog(options).ok()) _exit(1);
    spdlog::debug("one");
    spdlog::info("two");
    spdlog::warn("three");
    spdlog::error("four");
    spdlog::critical("five");
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::ifstream text(file);
  return {std::istreambuf_iterator<char>(text), {}};
}

TEST_F(LogTest, TheJournalGetsPrioritiesAndNoTimes) {
  auto this_file = [](const struct stat& info) {
    return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
  };
  EXPECT_EQ(WrittenToStderr(options_.file, this_file), "<7>one\n<6>two\n<4>three\n<3>four\n<2>five\n");
}

TEST_F(LogTest, StderrThatIsNotTheJournalGetsTimes) {
  // As where a service's stderr was sent elsewhere: the variable names another stream.
  for (const char* other : {"", "1:2", "nonsense"}) {
    std::string text = WrittenToStderr(options_.file, [other](const struct stat&) { return other; });
    EXPECT_EQ(text.find('<'), std::string::npos) << text;
    EXPECT_NE(text.find(" warning three\n"), std::string::npos) << text;
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
