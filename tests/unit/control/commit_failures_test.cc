#include "control/commit_failures.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

fs::CommitFailure FailureOf(const std::string& directory) {
  return {{1'763'757'685, 0}, InodeId{7}, "", directory, {"host a: lost", "host b: full"}};
}

// The directories of those that are told for a path.
std::vector<std::string> DirectoriesFor(std::string_view path) {
  const std::vector<fs::CommitFailure> failures = {FailureOf("run/step-2.tmp"), FailureOf("run/step-1.tmp"),
                                                   FailureOf("other"), FailureOf("#12/step-3.tmp")};
  std::vector<std::string> directories;
  for (const std::string& text : DescribeFailures(failures, path)) {
    const std::string rest = text.substr(text.find("UTC: ") + 5);
    directories.push_back(rest.substr(0, rest.find(" was not renamed")));
  }
  return directories;
}

TEST(CommitFailures, SayWhenWhatAndWhy) {
  const std::vector<fs::CommitFailure> failures = {FailureOf("run/step-1.tmp")};
  EXPECT_EQ(
      DescribeFailures(failures, ""),
      std::vector<std::string>{"2025-11-21 20:41:25 UTC: run/step-1.tmp was not renamed: host a: lost; host b: full"});
}

TEST(CommitFailures, AreThoseAtAboveAndBelowAPath) {
  using Directories = std::vector<std::string>;
  EXPECT_EQ(DirectoriesFor(""), (Directories{"run/step-2.tmp", "run/step-1.tmp", "other", "#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("run"), (Directories{"run/step-2.tmp", "run/step-1.tmp", "#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1.tmp"), (Directories{"run/step-1.tmp", "#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1.tmp/rank-0/part"), (Directories{"run/step-1.tmp", "#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1"), (Directories{"#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("ru"), (Directories{"#12/step-3.tmp"}));
  EXPECT_EQ(DirectoriesFor("other/x"), (Directories{"other", "#12/step-3.tmp"}));
}

}  // namespace
}  // namespace cairnfs::control
