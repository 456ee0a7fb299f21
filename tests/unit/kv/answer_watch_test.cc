// How long calls to a store far away wait: once their host is told to stop, and once nobody waits for them any more.
#include "kv/answer_watch.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/clock.h"
#include "base/context.h"
#include "kv/retry.h"

namespace cairnfs::kv {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// False: the calls are to end, and before that time has passed.
bool GoesOnFor(const AnswerWatch& watch, Clock::duration time) { return Context(watch.ended()).Sleep(time); }

TEST(AnswerWatch, EndsNothingByItself) {
  AnswerWatch watch;
  const AnswerWatch::Call call(&watch);
  EXPECT_TRUE(GoesOnFor(watch, hours(24)));
}

TEST(AnswerWatch, EndsCallsAtOnce) {
  AnswerWatch watch;
  int ended = 0;
  const Context::OnStop on_stop(Context(watch.ended()), [&] { ++ended; });
  watch.End();
  EXPECT_EQ(ended, 1);
  watch.End();
  EXPECT_EQ(ended, 1);
  EXPECT_FALSE(GoesOnFor(watch, milliseconds(0)));
}

TEST(AnswerWatch, EndsWithTheSilenceOfAStoreThatIsAsked) {
  AnswerWatch watch;
  AnswerWatch::Call call(&watch);
  Clock::SleepFor(hours(1));  // before the host was told to stop: that does not count
  const auto begin = Clock::Now();
  watch.EndAfterSilence(seconds(10));
  watch.EndAfterSilence(hours(1));
  EXPECT_FALSE(GoesOnFor(watch, hours(1)));
  EXPECT_EQ(Clock::Now() - begin, seconds(10));
  // An answer that comes too late changes nothing.
  call.NoteAnswer();
  EXPECT_FALSE(GoesOnFor(watch, milliseconds(0)));
}

TEST(AnswerWatch, ACallThatFailedIsNoAnswer) {
  AnswerWatch watch;
  watch.EndAfterSilence(seconds(10));
  const auto begin = Clock::Now();
  for (int i = 0; i < 3; ++i) {
    { const AnswerWatch::Call failed(&watch); }
    EXPECT_TRUE(GoesOnFor(watch, seconds(3)));
  }
  EXPECT_FALSE(GoesOnFor(watch, hours(1)));
  EXPECT_EQ(Clock::Now() - begin, seconds(10));
}

TEST(AnswerWatch, LastsWhileThereAreAnswers) {
  AnswerWatch watch;
  watch.EndAfterSilence(seconds(10));
  EXPECT_TRUE(GoesOnFor(watch, hours(1)));  // nobody asked
  for (int i = 0; i < 5; ++i) {
    AnswerWatch::Call call(&watch);
    EXPECT_TRUE(GoesOnFor(watch, seconds(9)));
    call.NoteAnswer();
  }
  EXPECT_TRUE(GoesOnFor(watch, hours(1)));
}

// The one that is left waits from then on.
TEST(AnswerWatch, AnAnswerToOneCallCountsForTheOthers) {
  AnswerWatch watch;
  watch.EndAfterSilence(seconds(10));
  const AnswerWatch::Call stuck(&watch);
  {
    AnswerWatch::Call call(&watch);
    Clock::SleepFor(seconds(7));
    call.NoteAnswer();
  }
  const auto answered_at = Clock::Now();
  EXPECT_FALSE(GoesOnFor(watch, hours(1)));
  EXPECT_EQ(Clock::Now() - answered_at, seconds(10));
}

TEST(AnswerWatch, MayBeAbsent) {
  AnswerWatch::Call call(nullptr);
  call.NoteAnswer();
  std::stop_source stop;
  const Context context = RetryOptions().Within(Context(stop.get_token()));
  EXPECT_FALSE(context.IsStopped());
  stop.request_stop();
  EXPECT_TRUE(context.IsStopped());
}

RetryOptions Slow() {
  RetryOptions options;
  options.give_up_after = hours(10);
  options.wait_min = options.wait_max = hours(1);
  return options;
}

// Whether the wait before the next try is over by itself, and how long it took.
struct Waited {
  bool is_done;
  Clock::duration time;
};
Waited WaitOnce(const Context& context, const RetryOptions& options) {
  Retry retry(context, options);
  const auto begin = Clock::Now();
  const bool is_done = retry.Wait();
  EXPECT_EQ(retry.Wait(), is_done) << "once over, it stays so";
  return {is_done, (Clock::Now() - begin) / (is_done ? 2 : 1)};
}

TEST(Retry, WaitsForARandomTime) {
  const Waited waited = WaitOnce({}, Slow());
  EXPECT_TRUE(waited.is_done);
  EXPECT_GE(waited.time, minutes(30));
  EXPECT_LE(waited.time, hours(1));
}

TEST(Retry, ItsWaitEndsWithTheStoresCalls) {
  RetryOptions options = Slow();
  options.answers = std::make_shared<AnswerWatch>();
  const AnswerWatch::Call call(options.answers.get());
  options.answers->EndAfterSilence(minutes(5));
  const Waited waited = WaitOnce({}, options);
  EXPECT_FALSE(waited.is_done);
  EXPECT_EQ(waited.time, minutes(5));
}

TEST(Retry, ItsWaitEndsWithItsCaller) {
  std::stop_source stop;
  auto waited = std::async(std::launch::async, [&] { return WaitOnce(Context(stop.get_token()), Slow()); });
  Clock::SleepFor(minutes(5));
  stop.request_stop();
  EXPECT_FALSE(waited.get().is_done);
}

TEST(Retry, DoesNotWaitPastTheDeadline) {
  const Waited late = WaitOnce(Context().WithTimeout(minutes(10)), Slow());
  EXPECT_FALSE(late.is_done);
  EXPECT_EQ(late.time, Clock::duration::zero());
  RetryOptions options = Slow();
  options.give_up_after = minutes(10);
  EXPECT_FALSE(WaitOnce({}, options).is_done);
  EXPECT_EQ(Retry({}, options).context().deadline(), Clock::Now() + minutes(10));
}

TEST(TryUntilAnswered, TriesAgainWhatWasUnavailable) {
  RetryOptions options;
  options.give_up_after = seconds(30);
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kConflict}) {
    int tries = 0;
    const Result<int> result = TryUntilAnswered({}, options, [&](const Context& context) -> Result<int> {
      EXPECT_LE(context.deadline() - Clock::Now(), seconds(30));
      ++tries;
      if (tries < 5) return MakeError(code, "planted");
      return 42;
    });
    EXPECT_EQ(tries, code == ErrorCode::kUnavailable ? 5 : 1);
    EXPECT_EQ(result.ok(), code == ErrorCode::kUnavailable);
  }
}

TEST(TryUntilAnswered, GivesUpInTime) {
  RetryOptions options;
  options.give_up_after = seconds(30);
  const auto begin = Clock::Now();
  const Status status = TryUntilAnswered(
      {}, options, [](const Context&) -> Status { return MakeError(ErrorCode::kUnavailable, "planted"); });
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_LE(Clock::Now() - begin, seconds(30));
  EXPECT_GE(Clock::Now() - begin, seconds(28));
}

}  // namespace
}  // namespace cairnfs::kv
