#include "temporaries.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

TEST(Temporaries, RulesAreParsed) {
  EXPECT_EQ(*ParseAbandoned("*.tmp*:24h"), (retention::AbandonedRule{"*.tmp*", std::chrono::hours(24)}));
  EXPECT_EQ(*ParseAbandoned("a:b:30d"), (retention::AbandonedRule{"a:b", std::chrono::hours(720)}));
  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{{"", "is to be PATTERN:TIME, as '*.tmp*:24h', not ''"},
                                                        {"*.tmp*", "no colon before the time"},
                                                        {"*.tmp*:", "is not a duration"},
                                                        {"*.tmp*:h", "is not a duration"},
                                                        {"*.tmp*:24", "is not a duration"},
                                                        {"*.tmp*:-24h", "is not a duration"},
                                                        {"*.tmp*:0h", "at least a second"},
                                                        {"*.tmp*:500ms", "at least a second"},
                                                        {"*.tmp*:99999999999999999999h", "is not a duration"},
                                                        {":24h", "is empty, and matches nothing"},
                                                        {"a/*.tmp:24h", "has a slash, which no name has"},
                                                        {"[a:24h", "has a [ without a ]"}}) {
    const auto rule = ParseAbandoned(text);
    ASSERT_FALSE(rule.ok()) << text;
    EXPECT_EQ(rule.error().code, ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(rule.error().message.find(words), std::string::npos) << text << ": " << rule.error().message;
  }
}

void SetModified(const stdfs::path& path, int64_t seconds) {
  const timespec times[2] = {{.tv_sec = seconds, .tv_nsec = 0}, {.tv_sec = seconds, .tv_nsec = 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
}

TEST(Temporaries, TheLastWriteBelowIsFound) {
  stdfs::current_path(stdfs::temp_directory_path());
  const stdfs::path top = "temporaries-" + std::to_string(getpid());
  stdfs::create_directories(top / "a/b");
  const int64_t now = Clock::WallTime().seconds;
  SetModified(top / "a/b", now + 5000);
  SetModified(top, now - 9000);
  const auto last_written = [](const std::string& name, int64_t enough = INT64_MAX) {
    WalkLimits limits{.enough = {.seconds = enough, .nanoseconds = 0}};
    return LastWritten(name, limits);
  };
  EXPECT_EQ(last_written(top)->seconds, now + 5000) << "whoever sets it ahead has it stay";
  SetModified(top / "a/b", now - 9000);
  const int64_t changed = last_written(top)->seconds;
  EXPECT_TRUE(changed >= now - 1 && changed < now + 1000) << "a time that is set back is a change now";
  stdfs::remove_all(top / "a");
  SetModified(top, now - 9000);
  EXPECT_EQ(last_written(top)->seconds, now - 9000) << "a rename of the directory itself writes nothing below it";
  stdfs::create_symlink("/", top / "link");
  SetModified(top, now - 9000);
  EXPECT_TRUE(last_written(top).ok()) << "past no symbolic link";
  std::ofstream(top / "file") << "x";
  SetModified(top, now - 9000);
  EXPECT_GE(last_written(top, now - 100)->seconds, now - 1);
  stdfs::remove_all(top);
  EXPECT_FALSE(last_written(top).ok());
}

TEST(Temporaries, WhatHasALifeOfItsOwnKeepsWhatItLiesIn) {
  stdfs::current_path(stdfs::temp_directory_path());
  const stdfs::path top = "temporaries-" + std::to_string(getpid());
  stdfs::create_directories(top / "run/step-1");
  std::ofstream(top / "run/file") << "x";
  const auto why = [&](std::optional<uid_t> only_of, size_t entries_max = 1000) {
    WalkLimits limits{
        .enough = {.seconds = INT64_MAX, .nanoseconds = 0}, .only_of = only_of, .entries_max = entries_max};
    const auto written = LastWritten(top, limits);
    return written.ok() ? "" : written.error().message;
  };
  EXPECT_EQ(why({}), "");
  EXPECT_EQ(why(geteuid()), "");
  EXPECT_NE(why(geteuid() + 1).find("run in it belongs to another user"), std::string::npos);
  EXPECT_EQ(why({}, 3), "");
  EXPECT_NE(why({}, 2).find("too much lies below it"), std::string::npos);
  if (setxattr((top / "run/step-1").c_str(), CAIRNFS_XATTR_PINNED, "1", 1, 0) == 0) {
    EXPECT_NE(why({}).find("step-1 in it has the attribute user.cairnfs.pinned"), std::string::npos);
  } else {
    EXPECT_EQ(errno, ENOTSUP);
  }
  stdfs::remove_all(top);
}

}  // namespace
}  // namespace cairnfs::tools
