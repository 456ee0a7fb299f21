#include "daemon/stop_deadline.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "base/clock.h"

namespace cairnfs::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

fs::Unsaved TwoFiles() {
  fs::Unsaved unsaved;
  unsaved.file_count = 2;
  unsaved.bytes = 3 * kMiB;
  unsaved.files = {{InodeId{7}, "a/large", 2 * kMiB}, {InodeId{8}, "b", kMiB}};
  return unsaved;
}

// The end of a process whose filesystem is the test's.
struct GivenUp {
  std::optional<fs::Unsaved> unsaved;
  Clock::time_point at, by;
};

class StopDeadlineTest : public ::testing::Test {
 protected:
  StopDeadline::Parts Parts(std::function<void(const Context&, const std::function<void(const fs::Unsaved&)>&)> list) {
    return {std::move(list),
            [this](const Context& until, const StopOutcome& outcome) {
              given_up_.set_value({outcome.unsaved, Clock::Now(), until.deadline()});
            },
            [this](const Context& until, const StopOutcome& outcome) {
              ended_.set_value({outcome.unsaved, Clock::Now(), until.deadline()});
            }};
  }
  static void ListTwo(const Context&, const std::function<void(const fs::Unsaved&)>& tell) { tell(TwoFiles()); }

  const Clock::time_point begin_ = Clock::Now();
  std::promise<GivenUp> given_up_, ended_;
  std::future<GivenUp> end_ = given_up_.get_future();
};

TEST_F(StopDeadlineTest, WhatIsNotDurableIsListedBeforeTheTimeIsUp) {
  StopDeadline deadline(Parts(ListTwo));
  deadline.Set(begin_ + seconds(25));
  const GivenUp end = end_.get();
  EXPECT_EQ(end.at, begin_ + seconds(23));
  EXPECT_EQ(end.by, begin_ + seconds(25));
  ASSERT_TRUE(end.unsaved);
  EXPECT_EQ(end.unsaved->files.front().path, "a/large");
}

TEST_F(StopDeadlineTest, OfSeveralTimesTheFirstCounts) {
  StopDeadline deadline(Parts(ListTwo));
  deadline.Set(begin_ + seconds(600));
  deadline.Set(begin_ + seconds(10));
  deadline.Set(begin_ + seconds(60));
  EXPECT_EQ(end_.get().by, begin_ + seconds(10));
}

TEST_F(StopDeadlineTest, OnceTheEndIsNearNothingIsGivenUp) {
  StopDeadline deadline(Parts(ListTwo));
  deadline.Set(begin_ + seconds(10));
  Clock::SleepFor(seconds(8));
  EXPECT_TRUE(deadline.NoteSynced({}).is_durable());
  deadline.Disarm();
  deadline.Set(begin_ + seconds(9));
  Clock::SleepFor(seconds(60));
  EXPECT_EQ(end_.wait_for(seconds(0)), std::future_status::timeout);
}

// What follows the last sync may take as long as that.
TEST_F(StopDeadlineTest, AfterTheLastSyncTheTimeCountsAndItsOutcomeIsTold) {
  StopDeadline deadline(Parts(ListTwo));
  deadline.Set(begin_ + seconds(25));
  EXPECT_TRUE(deadline.NoteSynced({}).is_durable()) << "nothing of the list is lost for good";
  const GivenUp end = ended_.get_future().get();
  EXPECT_EQ(end.by, begin_ + seconds(25));
  ASSERT_TRUE(end.unsaved);
  EXPECT_TRUE(end.unsaved->empty());
  EXPECT_EQ(end_.wait_for(seconds(0)), std::future_status::timeout);
}

TEST_F(StopDeadlineTest, ASyncThatIsFineMakesNothingDurableThatWasLostBefore) {
  StopDeadline deadline(Parts([](const Context&, const std::function<void(const fs::Unsaved&)>& tell) {
    fs::Unsaved unsaved = TwoFiles();
    unsaved.has_lost = true;
    tell(unsaved);
  }));
  deadline.Set(begin_ + seconds(25));
  const StopOutcome outcome = deadline.NoteSynced({});
  EXPECT_FALSE(outcome.is_durable());
  EXPECT_FALSE(outcome.reason.empty());
  EXPECT_EQ(outcome.unsaved->file_count, 2u);
}

TEST_F(StopDeadlineTest, WhatWasToAppearWholeAndIsNotClosedIsLost) {
  StopDeadline deadline(Parts([](const Context&, const std::function<void(const fs::Unsaved&)>& tell) {
    fs::Unsaved unsaved = TwoFiles();
    unsaved.unclosed_count = 1;
    tell(unsaved);
  }));
  deadline.Set(begin_ + seconds(25));
  const StopOutcome outcome = deadline.NoteSynced({});
  EXPECT_FALSE(outcome.is_durable());
  EXPECT_EQ(outcome.reason, "files that are to appear whole were open still, and are lost");
  EXPECT_EQ(outcome.unsaved->file_count, 2u);
}

TEST_F(StopDeadlineTest, AfterASyncThatFailsTheListIsBounded) {
  auto answers = std::make_shared<std::atomic<bool>>(false);
  auto is_over = std::make_shared<std::atomic<bool>>(false);
  StopDeadline deadline(Parts([=](const Context&, const std::function<void(const fs::Unsaved&)>&) {
    while (!*answers) Clock::SleepFor(seconds(1));
    *is_over = true;
  }));
  const StopOutcome outcome = deadline.NoteSynced(MakeError(ErrorCode::kIo, "the disk"));
  EXPECT_EQ(Clock::Now(), begin_ + seconds(2));
  EXPECT_FALSE(outcome.is_durable());
  EXPECT_TRUE(outcome.is_listing);
  EXPECT_EQ(outcome.reason, "the disk");
  *answers = true;
  while (!*is_over) Clock::SleepFor(seconds(1));
}

// One that is stuck before anything is known, and one that is stuck while it looks for the names.
TEST_F(StopDeadlineTest, AStuckDiskHoldsNothingUp) {
  auto answers = std::make_shared<std::atomic<bool>>(false);
  auto is_over = std::make_shared<std::atomic<int>>(0);
  for (bool knows_files : {false, true}) {
    given_up_ = {};
    end_ = given_up_.get_future();
    const auto begin = Clock::Now();
    StopDeadline deadline(Parts([=](const Context&, const std::function<void(const fs::Unsaved&)>& tell) {
      if (knows_files) tell(TwoFiles());
      while (!*answers) Clock::SleepFor(seconds(1));
      ++*is_over;
    }));
    deadline.Set(begin + seconds(10));
    const GivenUp end = end_.get();
    EXPECT_EQ(end.at, begin + milliseconds(9500));
    EXPECT_EQ(end.unsaved.has_value(), knows_files);
  }
  *answers = true;
  while (*is_over < 2) Clock::SleepFor(seconds(1));
}

TEST(StopTexts, SayHowMuchOfHowManyFiles) {
  EXPECT_EQ(DescribeUnsaved(TwoFiles()), "not durable: 3.0 MiB of 2 files");
  fs::Unsaved unsaved;
  unsaved.has_names = true;
  EXPECT_EQ(DescribeUnsaved(unsaved), "not durable: changes of names or attributes");
  unsaved.file_count = 1;
  unsaved.bytes = 10;
  EXPECT_EQ(DescribeUnsaved(unsaved), "not durable: 10 B of 1 file, and changes of names or attributes");
  EXPECT_EQ(DescribeUnsaved(std::optional<fs::Unsaved>()), "which files are not durable cannot be told");
}

TEST(StopTexts, EstimateAtTheRateOfLate) {
  control::StopEstimate estimate;
  EXPECT_EQ(DescribeEstimate(estimate), "no bytes wait for the disk");
  estimate.set_bytes(100 * kMiB);
  EXPECT_EQ(DescribeEstimate(estimate), "100.0 MiB are not durable");
  estimate.set_bytes_per_second(10.0 * kMiB);
  estimate.set_seconds(10);
  EXPECT_EQ(DescribeEstimate(estimate), "100.0 MiB are not durable, about 10 s at the 10.0 MiB/s of late");
}

}  // namespace
}  // namespace cairnfs::daemon
