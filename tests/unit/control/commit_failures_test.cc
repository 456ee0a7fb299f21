#include "control/commit_failures.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

meta::RefusedCommit FailureOf(const std::string& directory) {
  return {.source = InodeId{7},
          .at = {1'763'757'685, 0},
          .uid = 1000,
          .directory = directory,
          .causes = {{"run/f", "a", "lost"}, {"", "b", "full"}},
          .left_out = 5};
}

// The directories of those that are told for a path.
std::vector<std::string> DirectoriesFor(std::string_view path) {
  const std::vector<meta::RefusedCommit> failures = {FailureOf("run/step-2.tmp"), FailureOf("run/step-1.tmp"),
                                                     FailureOf("other"), FailureOf("#12/step-3.tmp"),
                                                     FailureOf("...deep/step-4.tmp")};
  std::vector<std::string> directories;
  StatusReply reply;
  AddFailures(failures, path, reply);
  for (const RefusedCommit& failure : reply.failures()) directories.push_back(failure.directory());
  return directories;
}

TEST(CommitFailures, SayWhenWhatAndWhy) {
  const std::vector<meta::RefusedCommit> failures = {FailureOf("run/step-1.tmp")};
  StatusReply reply;
  AddFailures(failures, "", reply);
  ASSERT_EQ(reply.failures_size(), 1);
  const RefusedCommit& told = reply.failures(0);
  EXPECT_EQ(told.at(), 1'763'757'685U);
  EXPECT_EQ(told.uid(), 1000U);
  EXPECT_EQ(told.directory(), "run/step-1.tmp");
  ASSERT_EQ(told.causes_size(), 2);
  EXPECT_EQ(told.causes(0).file() + " " + told.causes(0).host() + " " + told.causes(0).cause(), "run/f a lost");
  EXPECT_EQ(told.left_out(), 5U);
}

TEST(CommitFailures, AreThoseAtAboveAndBelowAPath) {
  using Directories = std::vector<std::string>;
  EXPECT_EQ(DirectoriesFor(""),
            (Directories{"run/step-2.tmp", "run/step-1.tmp", "other", "#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("run"),
            (Directories{"run/step-2.tmp", "run/step-1.tmp", "#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1.tmp"), (Directories{"run/step-1.tmp", "#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1.tmp/rank-0/part"),
            (Directories{"run/step-1.tmp", "#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("run/step-1"), (Directories{"#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("ru"), (Directories{"#12/step-3.tmp", "...deep/step-4.tmp"}));
  EXPECT_EQ(DirectoriesFor("other/x"), (Directories{"other", "#12/step-3.tmp", "...deep/step-4.tmp"}));
}

}  // namespace
}  // namespace cairnfs::control
