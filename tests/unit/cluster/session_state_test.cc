#include "cluster/session_state.h"

#include "base/clock.h"
#include "member_fixture.h"

namespace cairnfs::cluster {
namespace {

TEST(SessionState, LivesUntilTheLeaseMayHaveEnded) {
  SessionState state;
  EXPECT_EQ(CodeOf(state.Get()), ErrorCode::kStale);
  state.Begin({"key", 7, 3}, Clock::SinceBoot() + std::chrono::seconds(60));
  EXPECT_EQ(Must(state.Get()).revision, 7u);
  EXPECT_TRUE(state.LeaseHolds());
  state.Extend(1, Clock::SinceBoot());  // an answer that was overtaken by a later one takes nothing back
  EXPECT_TRUE(state.LeaseHolds());
  EXPECT_FALSE(state.Lose(2, "not this one"));
  EXPECT_TRUE(state.Lose(1, "a reason"));
  EXPECT_FALSE(state.Lose(1, "a reason"));
  EXPECT_FALSE(state.LeaseHolds());
  EXPECT_NE(state.Get().error().message.find("a reason"), std::string::npos);
  state.Extend(1, Clock::SinceBoot() + std::chrono::seconds(60));
  EXPECT_FALSE(state.LeaseHolds());

  state.Begin({"key", 9, 4}, Clock::SinceBoot());
  EXPECT_EQ(CodeOf(state.Get()), ErrorCode::kUnavailable);
  EXPECT_EQ(state.Current()->number, 2u);
}

TEST(SessionState, WhoWaitsAcrossALossIsRefused) {
  SessionState state;
  state.Begin({"key", 7, 3}, Clock::SinceBoot());
  std::thread other([&] {
    EXPECT_TRUE(Eventually([&] { return state.waiting_count() == 1; }));
    state.Lose(1, "a reason");
    state.Begin({"key", 9, 4}, Clock::SinceBoot() + std::chrono::seconds(60));
  });
  EXPECT_EQ(CodeOf(state.Wait({})), ErrorCode::kStale);
  other.join();
  EXPECT_EQ(Must(state.Wait({})).revision, 9u);
}

TEST(SessionState, AStoppedContextEndsTheWait) {
  SessionState state;
  state.Begin({"key", 7, 3}, Clock::SinceBoot());
  std::stop_source stop;
  std::thread waits([&] { EXPECT_EQ(CodeOf(state.Wait(Context(stop.get_token()))), ErrorCode::kUnavailable); });
  EXPECT_TRUE(Eventually([&] { return state.waiting_count() == 1; }));
  stop.request_stop();
  waits.join();
  EXPECT_EQ(CodeOf(state.Wait(Context(stop.get_token()))), ErrorCode::kUnavailable);
  // One that is known to live is not waited for.
  state.Extend(1, Clock::SinceBoot() + std::chrono::seconds(60));
  EXPECT_EQ(Must(state.Wait(Context(stop.get_token()))).revision, 7u);
}

TEST(SessionState, NobodyWaitsForAStoreThatIsGivenUp) {
  auto answers = std::make_shared<kv::AnswerWatch>();
  SessionState state(answers);
  state.Begin({"key", 7, 3}, Clock::SinceBoot());
  std::thread waits([&] { EXPECT_EQ(CodeOf(state.Wait({})), ErrorCode::kUnavailable); });
  EXPECT_TRUE(Eventually([&] { return state.waiting_count() == 1; }));
  answers->EndAfterSilence(milliseconds(50));
  waits.join();
  EXPECT_EQ(CodeOf(state.Wait({})), ErrorCode::kUnavailable);
  // One that is known to live needs no store.
  state.Extend(1, Clock::SinceBoot() + std::chrono::seconds(60));
  EXPECT_EQ(Must(state.Wait({})).revision, 7u);
}

}  // namespace
}  // namespace cairnfs::cluster
