#include "../../support/virtual_time.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairnfs {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(VirtualTime, SleepingTakesNone) {
  const auto real = std::chrono::steady_clock::now();
  const auto wall = Clock::WallTime();
  const auto begin = Clock::Now();
  const auto since_boot = Clock::SinceBoot();
  Clock::SleepFor(hours(1000));
  EXPECT_EQ(Clock::Now() - begin, hours(1000));
  EXPECT_EQ(Clock::SinceBoot() - since_boot, hours(1000));
  EXPECT_EQ(Clock::WallTime().seconds - wall.seconds, 3'600'000);
  EXPECT_LT(std::chrono::steady_clock::now() - real, hours(1));
}

TEST(VirtualTime, ThreadsWakeInTheOrderOfTheirTimes) {
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::thread> threads;
  const auto begin = Clock::Now();
  for (const int at : {3, 1, 2, 4}) {
    threads.emplace_back([&order, &mutex, begin, at] {
      Clock::SleepUntil(begin + milliseconds(at));
      EXPECT_EQ(Clock::Now(), begin + milliseconds(at));
      std::lock_guard lock(mutex);
      order.push_back(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector{1, 2, 3, 4}));
}

// However long the work takes, the timeout beside it does not pass.
TEST(VirtualTime, WorkTakesNone) {
  std::atomic<bool> ended = false;
  std::thread worker([&ended] {
    std::atomic<int> i = 0;
    while (++i < 50'000'000) {
    }
    ended = true;
  });
  Clock::SleepFor(milliseconds(1));
  EXPECT_TRUE(ended);
  worker.join();
}

TEST(VirtualTime, AConditionIsWaitedForByIt) {
  Mutex mutex;
  CondVar changed;
  bool is_set = false;
  const auto begin = Clock::Now();
  std::thread setter([&] {
    Clock::SleepFor(milliseconds(10));
    MutexLock lock(mutex);
    is_set = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(changed.WaitUntil(mutex, begin + milliseconds(5)));
    EXPECT_FALSE(is_set);
    while (!is_set) EXPECT_TRUE(changed.WaitFor(mutex, hours(1)));
  }
  EXPECT_EQ(Clock::Now(), begin + milliseconds(10));
  setter.join();
}

// One whose time has come waits for the lock of another that sleeps.
TEST(VirtualTime, PassesBesideAThreadThatIsWokenAndBlocked) {
  Mutex mutex;
  CondVar changed;
  const auto begin = Clock::Now();
  std::thread waiter([&] {
    MutexLock lock(mutex);
    EXPECT_FALSE(changed.WaitUntil(mutex, begin + milliseconds(5)));
    EXPECT_EQ(Clock::Now(), begin + milliseconds(20));
  });
  Clock::SleepFor(milliseconds(1));
  {
    MutexLock lock(mutex);
    Clock::SleepUntil(begin + milliseconds(20));
  }
  waiter.join();
}

}  // namespace
}  // namespace cairnfs
