#include "checkpoints.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "retention/values.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

class CheckpointsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/checkpoints-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { stdfs::remove_all(root_); }
  void Put(const std::string& path, const std::string& bytes) {
    stdfs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path, std::ios::binary) << bytes;
  }

  stdfs::path root_;
};

TEST_F(CheckpointsTest, ListsDirectoriesThatMatch) {
  Put("step-2/a", "1");
  Put("step-10/a", "1");
  Put("step-3", "a file");
  Put("other/a", "1");
  stdfs::create_directory_symlink(root_ / "step-2", root_ / "step-4");
  const auto pattern = StepPattern::Parse("step-(\\d+)");
  const auto list = ListCheckpoints(root_.string(), *pattern);
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->checkpoints.size(), 2u);
  EXPECT_EQ(list->checkpoints[0].step, 10u);
  EXPECT_EQ(list->checkpoints[1].step, 2u);
  EXPECT_FALSE(list->checkpoints[0].commit);
  ASSERT_EQ(list->skipped.size(), 1u);
  EXPECT_NE(list->skipped[0].find("step-4 is a symbolic link"), std::string::npos);
  EXPECT_EQ(ListCheckpoints((root_ / "none").string(), *pattern).error().code, ErrorCode::kNotFound);
}

TEST_F(CheckpointsTest, WhatOthersSetAsACommitIsNone) {
  Put("step-1/a", "1");
  const std::string path = (root_ / "step-1").string();
  for (const char* text :
       {"", "[]", "{}", R"({"revision":"x"})", R"({"committed_at":1e300,"revision":1,"uid":0,"host":"","command":""})",
        R"({"committed_at":1,"revision":-1,"uid":0,"host":"","command":""})",
        R"({"committed_at":1,"revision":1,"uid":0,"host":null,"command":""})"}) {
    if (setxattr(path.c_str(), "user.cairnfs.commit", text, std::string(text).size(), 0) != 0) GTEST_SKIP();
    const auto commit = ReadCommit(path);
    ASSERT_TRUE(commit.ok());
    EXPECT_FALSE(*commit) << text;
  }
}

TEST_F(CheckpointsTest, WhatRetentionRemovesIsNamed) {
  Put("step-1/a", "1");
  Put(retention::GoingName("abcdefghijklmnop", "step-2") + "/a", "1");
  Put(retention::GoingName("abcdefghijklmnop", "notes") + "/a", "1");
  Put(retention::GoingName("abcdefghijklmnop", std::string(200, '1')) + "/a", "1");
  for (const char* pattern : {"step-(\\d+)", ""}) {
    const auto list = ListCheckpoints(root_.string(), *StepPattern::Parse(pattern));
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->checkpoints.size(), 1u);
    EXPECT_TRUE(list->skipped.empty());
    ASSERT_EQ(list->in_removal.size(), 1u);
    EXPECT_NE(list->in_removal[0].find("/step-2: retention removes it; it is now .cairnfs-going-"), std::string::npos);
  }
}

// A file that is written anew does not change its directory.
TEST_F(CheckpointsTest, TheTimeIsThatOfTheNewestFile) {
  Put("step-1/old", "1");
  Put("step-1/new", "1");
  const auto set_time = [&](const std::string& path, time_t seconds) {
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = seconds, .tv_nsec = 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (root_ / path).c_str(), times, 0), 0);
  };
  const auto time_of = [&](KnownCommits* known) {
    const auto list = ListCheckpoints(root_.string(), *StepPattern::Parse(""), known);
    return list.ok() && list->checkpoints.size() == 1 ? list->checkpoints[0].time : -1.0;
  };
  set_time("step-1/old", 1000);
  set_time("step-1/new", 3000);
  set_time("step-1", 2000);
  EXPECT_EQ(time_of(nullptr), 3000);
  KnownCommits known;
  EXPECT_EQ(time_of(&known), 2000);
  set_time("step-1", 4000);
  EXPECT_EQ(time_of(nullptr), 4000);
}

TEST_F(CheckpointsTest, WhatIsKnownIsNotReadAgain) {
  Put("step-1/a", "1");
  KnownCommits known;
  const auto pattern = StepPattern::Parse("");
  for (int look = 0; look < 3; ++look) {
    const auto list = ListCheckpoints(root_.string(), *pattern, &known);
    ASSERT_TRUE(list.ok());
    EXPECT_EQ(list->checkpoints.size(), 1u);
    EXPECT_EQ(known.size(), 1u);
    known.begin()->second.commit = nlohmann::ordered_json{{"committed_at", 5.0}, {"revision", 7u}};
    EXPECT_EQ(list->checkpoints[0].revision(), look > 0 ? 7u : 0u);
  }
}

}  // namespace
}  // namespace cairnfs::tools
