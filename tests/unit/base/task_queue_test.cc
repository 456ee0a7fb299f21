#include "base/task_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <vector>

#include "../../support/few_threads.h"

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
    std::string first;
    for (int tries = 0; tries < 3; ++tries) {  // none left behind: each try gets as far as the first
      try {
        TaskQueue queue("test-queue", 50);
        return 1;
      } catch (const std::system_error& error) {
        if (first.empty()) first = error.what();
        if (first != error.what() || first.find(" of 50 of test-queue") == std::string::npos) return 2;
      }
    }
    return 0;
  });
  EXPECT_EQ(answer, 0);
}

}  // namespace
}  // namespace cairnfs
