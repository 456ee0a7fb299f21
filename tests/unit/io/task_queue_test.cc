#include "io/task_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace cairnfs::io {
namespace {

TEST(TaskQueue, RunsEverythingBeforeItEnds) {
  std::atomic<int> run = 0;
  {
    TaskQueue queue({.thread_count = 3, .size_max = 4, .thread_name = "test"});
    for (int i = 0; i < 1000; i++) queue.Post([&] { run++; });
  }
  EXPECT_EQ(run, 1000);
}

TEST(TaskQueue, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    TaskQueue queue({.thread_count = 1, .size_max = 2, .thread_name = "test"});
    for (int i = 0; i < 100; i++) queue.Post([&, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(TaskQueue, ATaskMayPostToAFullQueue) {
  std::atomic<int> run = 0;
  {
    TaskQueue queue({.thread_count = 1, .size_max = 1, .thread_name = "test"});
    queue.Post([&] {
      for (int i = 0; i < 10; i++) queue.Post([&] { run++; });
    });
  }
  EXPECT_EQ(run, 10);
}

}  // namespace
}  // namespace cairnfs::io
