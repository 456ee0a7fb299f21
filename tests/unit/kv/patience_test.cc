// How long calls wait once their host is told to stop.
#include "kv/patience.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "kv/retry.h"

namespace cairnfs::kv {
namespace {

using std::chrono::milliseconds;

TEST(Patience, HasNoEndUntilItIsLimited) {
  Patience patience;
  bool given_up = false;
  Patience::Call call(&patience, [&] { given_up = true; });
  EXPECT_TRUE(Patience::Sleep(&patience, milliseconds(50)));
  EXPECT_FALSE(patience.IsOver());
  EXPECT_FALSE(given_up);
}

TEST(Patience, EndsWithTheSilenceOfAStoreThatIsAsked) {
  Patience patience;
  const auto begin = Clock::Now();
  std::atomic<int> given_up{0};
  Patience::Call before(&patience, [&] { ++given_up; });
  patience.Limit(milliseconds(100));
  patience.Limit(std::chrono::hours(1));
  EXPECT_FALSE(Patience::Sleep(&patience, std::chrono::hours(1)));
  EXPECT_GE(Clock::Now() - begin, milliseconds(100));
  EXPECT_TRUE(patience.IsOver());
  Patience::Call after(&patience, [&] { ++given_up; });
  EXPECT_EQ(given_up, 2);
  EXPECT_FALSE(Patience::Sleep(&patience, milliseconds(0)));
  // An answer that comes too late changes nothing.
  after.NoteAnswer();
  EXPECT_TRUE(patience.IsOver());
}

TEST(Patience, ACallThatFailedIsNoAnswer) {
  Patience patience;
  patience.Limit(milliseconds(50));
  {
    Patience::Call failed(&patience, [] {});
  }
  EXPECT_FALSE(Patience::Sleep(&patience, std::chrono::hours(1)));
}

TEST(Patience, LastsWhileThereAreAnswers) {
  Patience patience;
  patience.Limit(std::chrono::seconds(3));
  EXPECT_TRUE(Patience::Sleep(&patience, milliseconds(3500)));  // nobody asked
  for (int i = 0; i < 35; ++i) {
    Patience::Call call(&patience, [] { ADD_FAILURE() << "given up"; });
    Clock::SleepFor(milliseconds(100));
    call.NoteAnswer();
  }
  EXPECT_FALSE(patience.IsOver());
}

// The one that is left waits from then on.
TEST(Patience, AnAnswerToOneCallCountsForTheOthers) {
  constexpr std::chrono::seconds kSilenceMax{3};
  Patience patience;
  patience.Limit(kSilenceMax);
  Patience::Call stuck(&patience, [] {});
  Clock::time_point answered_at;
  {
    Patience::Call call(&patience, [] {});
    Clock::SleepFor(milliseconds(200));
    answered_at = Clock::Now();
    call.NoteAnswer();
  }
  EXPECT_FALSE(Patience::Sleep(&patience, std::chrono::hours(1)));
  EXPECT_GE(Clock::Now() - answered_at, kSilenceMax);
}

TEST(Patience, OfAThreadEndsWhatThatThreadWaitsFor) {
  Patience store, caller;
  std::atomic<int> given_up{0};
  Patience::Call of_another(&store, [] { ADD_FAILURE() << "given up"; });
  std::thread waiting([&] {
    const Patience::OfThread scope(caller);
    Patience::Call call(&store, [&] { ++given_up; });
    EXPECT_FALSE(Patience::Sleep(&store, std::chrono::hours(1)));
    EXPECT_TRUE(Patience::IsWaitOver(&store));
    EXPECT_TRUE(Patience::IsWaitOver(nullptr));
    Patience::Call later(nullptr, [&] { ++given_up; });
  });
  EXPECT_TRUE(Patience::Sleep(&store, milliseconds(50)));
  EXPECT_EQ(given_up, 0);
  caller.End();
  waiting.join();
  EXPECT_EQ(given_up, 2);
  EXPECT_FALSE(Patience::IsWaitOver(&store));
}

TEST(Patience, OfAThreadCanBeTakenOverByAnother) {
  Patience caller, inner;
  const Patience::OfThread scope(caller);
  std::thread helper([patience = Patience::Current()] {
    EXPECT_EQ(Patience::Current(), nullptr);
    const Patience::OfThread as_the_caller(patience);
    EXPECT_FALSE(Patience::Sleep(nullptr, std::chrono::hours(1)));
  });
  {
    const Patience::OfThread other(inner);
    caller.End();
    EXPECT_FALSE(Patience::IsWaitOver(nullptr));
  }
  EXPECT_TRUE(Patience::IsWaitOver(nullptr));
  helper.join();
}

TEST(Patience, EndsTheWaitBetweenTries) {
  RetryOptions options;
  options.give_up_after = std::chrono::hours(2);
  options.wait_min = options.wait_max = std::chrono::hours(1);
  options.patience = std::make_shared<Patience>();
  Retry retry(options);
  Patience::Call call(options.patience.get(), [] {});
  options.patience->Limit(milliseconds(50));
  EXPECT_FALSE(retry.Wait());
  EXPECT_FALSE(retry.Wait());
}

}  // namespace
}  // namespace cairnfs::kv
