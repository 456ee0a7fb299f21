#include "base/context.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

namespace cairnfs {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

TEST(Context, HasNoEndByItself) {
  const Context context;
  EXPECT_FALSE(context.Expired());
  EXPECT_TRUE(context.Sleep(hours(1000)));
  EXPECT_FALSE(context.Expired());
}

TEST(Context, TheEarlierDeadlineCounts) {
  const auto begin = Clock::Now();
  const Context hour = Context().WithTimeout(hours(1));
  EXPECT_EQ(hour.WithTimeout(hours(2)).deadline(), begin + hours(1));
  const Context minute = hour.WithTimeout(minutes(1));
  EXPECT_FALSE(minute.Sleep(hours(2)));
  EXPECT_EQ(Clock::Now(), begin + minutes(1));
  EXPECT_TRUE(minute.IsLate());
  EXPECT_FALSE(minute.IsStopped());
  EXPECT_FALSE(hour.Expired()) << "what it was made of goes on";
}

TEST(Context, EitherStopEndsIt) {
  for (const bool first : {true, false}) {
    std::stop_source one, other;
    const Context context = Context(one.get_token()).WithStop(other.get_token());
    EXPECT_FALSE(context.IsStopped());
    const auto begin = Clock::Now();
    std::thread stopper([&] {
      Clock::SleepFor(minutes(1));
      (first ? one : other).request_stop();
    });
    EXPECT_FALSE(context.Sleep(hours(1)));
    EXPECT_EQ(Clock::Now(), begin + minutes(1));
    EXPECT_TRUE(context.IsStopped());
    EXPECT_FALSE(context.IsLate());
    EXPECT_FALSE(context.Sleep(hours(1))) << "at once";
    EXPECT_EQ(Clock::Now(), begin + minutes(1));
    stopper.join();
  }
}

TEST(Context, AWaitEndsWithWhatItWaitsForOrWithTheContext) {
  Mutex mutex;
  CondVar changed;
  bool is_set = false;
  std::stop_source stop;
  const Context context(stop.get_token());
  const auto begin = Clock::Now();
  std::thread setter([&] {
    Clock::SleepFor(minutes(1));
    {
      MutexLock lock(mutex);
      is_set = true;
      changed.NotifyAll();
    }
    Clock::SleepFor(minutes(1));
    stop.request_stop();
  });
  {
    MutexLock lock(mutex);
    EXPECT_TRUE(context.Wait(mutex, changed, [&] { return is_set; }));
    EXPECT_EQ(Clock::Now(), begin + minutes(1));
    EXPECT_FALSE(context.Wait(mutex, changed, [] { return false; }));
    EXPECT_EQ(Clock::Now(), begin + minutes(2));
    EXPECT_TRUE(context.Wait(mutex, changed, [&] { return is_set; })) << "what is there is no matter of time";
  }
  setter.join();
}

// The lock is let go once more before a wait returns. Whoever comes in between may take what was waited for.
TEST(Context, WhatAWaitFindsReadyIsStillThere) {
  constexpr int kTakers = 8, kEach = 2000;
  Mutex mutex;
  CondVar changed;
  int there = 0, taken = 0;
  bool was_gone = false;
  std::vector<std::thread> takers;
  for (int i = 0; i < kTakers; i++) {
    takers.emplace_back([&] {
      for (int count = 0; count < kEach; count++) {
        MutexLock lock(mutex);
        EXPECT_TRUE(Context().Wait(mutex, changed, [&] { return there > 0; }));
        was_gone = was_gone || there == 0;
        there--;
        taken++;
      }
    });
  }
  for (int count = 0; count < kTakers * kEach; count++) {
    MutexLock lock(mutex);
    there++;
    changed.NotifyAll();
  }
  for (std::thread& taker : takers) taker.join();
  EXPECT_FALSE(was_gone);
  EXPECT_EQ(there, 0);
  EXPECT_EQ(taken, kTakers * kEach);
}

TEST(Context, WhoeverIsToBeToldOfTheStopIsToldOnce) {
  std::stop_source one, other;
  const Context context = Context(one.get_token()).WithStop(other.get_token());
  int told = 0;
  {
    const Context::OnStop early(context, [&] { told++; });
    EXPECT_EQ(told, 0);
    one.request_stop();
    other.request_stop();
    EXPECT_EQ(told, 1);
  }
  const Context::OnStop late(context, [&] { told++; });
  EXPECT_EQ(told, 2) << "it is stopped already";
}

TEST(Context, WithoutADeadlineItIsOverOnlyWhenItIsStopped) {
  std::stop_source stop;
  const Context context = Context(stop.get_token()).WithTimeout(minutes(0)).WithoutDeadline();
  EXPECT_FALSE(context.Expired());
  EXPECT_TRUE(context.MayExpire());
  EXPECT_FALSE(Context().MayExpire());
  stop.request_stop();
  EXPECT_TRUE(context.Expired());
}

TEST(Context, WhoeverStopsItLearnsThatNobodyWaitsByIt) {
  auto stop = std::make_shared<std::stop_source>();
  const std::weak_ptr<std::stop_source> is_needed = stop;
  auto context = std::make_unique<Context>(Context().WithStop(std::move(stop)));
  auto derived = std::make_unique<Context>(context->WithTimeout(minutes(1)));
  context.reset();
  bool told = false;
  auto wait = std::make_unique<Context::OnStop>(*derived, [&] { told = true; });
  derived.reset();
  ASSERT_FALSE(is_needed.expired());
  is_needed.lock()->request_stop();
  EXPECT_TRUE(told);
  wait.reset();
  EXPECT_TRUE(is_needed.expired());
}

}  // namespace
}  // namespace cairnfs
