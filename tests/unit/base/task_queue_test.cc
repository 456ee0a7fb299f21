#include "base/task_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <vector>

#include "../../support/few_threads.h"
#include "base/clock.h"

namespace cairnfs {
namespace {

TEST(TaskQueue, RunsWhatIsQueuedBeforeItEnds) {
  std::atomic<int> run{0};
  {
    TaskQueue queue("test-queue", 3);
    for (int i = 0; i < 100; ++i) queue.Post([&run] { run++; });
  }
  EXPECT_EQ(run.load(), 100);
}

TEST(TaskQueue, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    TaskQueue queue("test-queue", 1);
    for (int i = 0; i < 100; ++i) queue.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(TaskQueue, TooManyThreadsAreAnExceptionAndLeaveNone) {
  if (!MayLimitThreads()) GTEST_SKIP() << "becomes another user";
  const int answer = WithFewThreads(10, [] {
    auto try_once = [] {
      try {
        TaskQueue queue("test-queue", 50);
        return std::string();
      } catch (const std::system_error& error) {
        return std::string(error.what());
      }
    };
    const std::string first = try_once();
    if (first.empty()) return 1;
    if (first.find(" of 50 of test-queue") == std::string::npos) return 2;
    for (int tries = 0; tries < 3; ++tries) {
      // None is left behind: each try gets as far as the first, once the system counts those before no more, which is
      // a little after they were joined.
      const auto end = Clock::Now() + std::chrono::seconds(30);
      while (try_once() != first) {
        if (Clock::Now() > end) return 3;
        Clock::SleepFor(std::chrono::milliseconds(10));
      }
    }
    return 0;
  });
  EXPECT_EQ(answer, 0);
}

}  // namespace
}  // namespace cairnfs
