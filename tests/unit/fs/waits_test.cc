// Callers that do not wait for an answer any longer.
#include "fs/waits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "../../support/eventually.h"
#include "../../support/virtual_time.h"

namespace cairnfs::fs {
namespace {

using std::chrono::minutes;

class WaitsTest : public testing::Test {
 protected:
  SyncRounds::Answer Wait(const Context& context) {
    return waits_.Within(
        context, [] { return MakeError(ErrorCode::kUnavailable, "late"); },
        [this](const Status& status) {
          MutexLock lock(mutex_);
          told_.push_back(status.ok() ? ErrorCode{} : status.error().code);
        });
  }
  std::vector<ErrorCode> told() {
    MutexLock lock(mutex_);
    return told_;
  }
  VirtualTime time_;
  Mutex mutex_;
  std::vector<ErrorCode> told_ GUARDED_BY(mutex_);
  Waits waits_;
};

TEST_F(WaitsTest, AnAnswerIsToldOnce) {
  std::stop_source stop;
  const SyncRounds::Answer answer = Wait(Context(stop.get_token()).WithTimeout(minutes(1)));
  EXPECT_TRUE(answer({}));
  EXPECT_FALSE(answer({}));
  stop.request_stop();
  Clock::SleepFor(minutes(2));
  EXPECT_EQ(told().size(), 1U);
}

TEST_F(WaitsTest, WhoIsLateIsToldAtTheDeadline) {
  const auto began = Clock::Now();
  const SyncRounds::Answer later = Wait(Context().WithTimeout(minutes(2)));
  const SyncRounds::Answer answer = Wait(Context().WithTimeout(minutes(1)));
  EXPECT_TRUE(Eventually([&] { return told().size() == 1; }));
  EXPECT_GE(Clock::Now(), began + minutes(1));
  EXPECT_EQ(told()[0], ErrorCode::kUnavailable);
  EXPECT_FALSE(answer({}));
  EXPECT_TRUE(Eventually([&] { return told().size() == 2; }));
  EXPECT_FALSE(later({}));
}

TEST_F(WaitsTest, WhoIsKilledIsToldAtOnce) {
  std::stop_source stop;
  const SyncRounds::Answer answer = Wait(Context(stop.get_token()));
  stop.request_stop();
  EXPECT_TRUE(Eventually([&] { return told().size() == 1; }));
  EXPECT_EQ(told()[0], ErrorCode::kInterrupted);
  EXPECT_FALSE(answer({}));
  const SyncRounds::Answer next = Wait(Context(stop.get_token()));
  EXPECT_TRUE(Eventually([&] { return told().size() == 2; })) << "it was stopped before";
  EXPECT_FALSE(next({}));
}

TEST_F(WaitsTest, WhoWaitsInVainIsToldSoon) {
  std::atomic<bool> is_vain{false};
  const auto wait = [&] {
    return waits_.WhileNotVain(
        {}, [&] { return is_vain.load(); },
        [this](const Status& status) {
          MutexLock lock(mutex_);
          told_.push_back(status.ok() ? ErrorCode{} : status.error().code);
        });
  };
  const SyncRounds::Answer answer = wait(), in_vain = wait();
  Clock::SleepFor(minutes(1));
  EXPECT_EQ(told().size(), 0U);
  EXPECT_TRUE(answer({}));
  is_vain = true;
  EXPECT_TRUE(Eventually([&] { return told().size() == 2; }));
  EXPECT_EQ(told()[1], ErrorCode::kUnavailable);
  EXPECT_FALSE(in_vain({}));
}

TEST_F(WaitsTest, WhoWasNotAnsweredByTheStopIsForgotten) {
  std::stop_source stop;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> is_held = held;
  SyncRounds::Answer answer = waits_.Within(Context(stop.get_token()), [held = std::move(held)](const Status&) {});
  waits_.Stop();
  stop.request_stop();
  EXPECT_FALSE(answer({}));
  answer = nullptr;
  EXPECT_TRUE(is_held.expired());
}

}  // namespace
}  // namespace cairnfs::fs
