// Commits for which fewer ranks do, and such that require files.
#include "base/clock.h"
#include "base/hex.h"
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

class FewerRanksTest : public RankGateTest {
 protected:
  GateCall CallOf(unsigned rank, unsigned at_least, milliseconds timeout = std::chrono::seconds(60)) {
    GateCall call = Call(rank, 4, timeout);
    call.at_least = at_least;
    call.required = required_;
    return call;
  }
  Pending Come(unsigned host, const GateCall& call) {
    std::stop_source stop;
    auto commit = [this, host, call, stop] {
      RankGate::Caller caller{.rename = [this]() -> Status {
                                ++renames_;
                                has_final_name_ = true;
                                return {};
                              },
                              .has_final_name = [this]() -> Result<bool> { return has_final_name_.load(); },
                              .wanted = Context(stop.get_token()),
                              .serving = {},
                              .check_required = [this]() -> Status {
                                ++checks_;
                                if (is_away_ > 0 && is_away_-- > 0) return MakeError(ErrorCode::kUnavailable, "away");
                                if (is_there_) return {};
                                return MakeError(ErrorCode::kFailed, "of 4 files 'shard-*' 3 are there");
                              }};
      return hosts_[host]->gate->Commit(call, caller);
    };
    return {std::async(std::launch::async, std::move(commit)), stop};
  }

  std::vector<std::string> required_;
  std::atomic<int> checks_{0}, is_away_{0};
  std::atomic<bool> is_there_{true};
};

TEST_F(FewerRanksTest, ThoseThatAreLeftCommitWhenTheTimeIsUp) {
  required_ = {"shard-*"};
  std::vector<Pending> calls;
  for (unsigned rank : {0U, 1U, 3U}) calls.push_back(Come(rank % 3, CallOf(rank, 3)));
  WaitForRanks(3);
  EXPECT_FALSE(calls[0].IsOverWithin(std::chrono::seconds(50)));
  for (Pending& call : calls) ExpectCommitted(std::move(call));
  EXPECT_EQ(renames_, 1);
  ExpectCommitted(Come(1, CallOf(2, 3)));  // one that comes later is told
  EXPECT_EQ(renames_, 1);
}

TEST_F(FewerRanksTest, TooFewAreToldWhoIsMissing) {
  auto first = Come(0, CallOf(0, 3, milliseconds(5000)));
  auto second = Come(1, CallOf(2, 3, milliseconds(5000)));
  EXPECT_TRUE(Has(first.get(), "ranks 1, 3 did not come within 5 s (2 of 4 ranks are missing); at least 3 must come"));
  EXPECT_FALSE(second.get().ok());
  EXPECT_EQ(renames_, 0);
}

TEST_F(FewerRanksTest, WhatIsRequiredMustBeThere) {
  required_ = {"shard-*"};
  is_there_ = false;
  auto first = Come(0, CallOf(0, 2, milliseconds(5000)));
  auto second = Come(1, CallOf(2, 2, milliseconds(5000)));
  const Status refused = first.get();
  EXPECT_TRUE(
      Has(refused, "2 of 4 ranks have come, and what is required is not there: of 4 files 'shard-*' 3 are there"))
      << refused.error().message;
  EXPECT_FALSE(second.get().ok());
  // Also when all have come; at once.
  std::vector<Pending> calls;
  for (unsigned rank = 0; rank < 4; ++rank) calls.push_back(Come(rank % 3, CallOf(rank, 0)));
  for (Pending& call : calls) EXPECT_TRUE(Has(call.get(), "4 of 4 ranks have come"));
  EXPECT_EQ(renames_, 0);
  is_there_ = true;
  is_away_ = 2;  // it is asked again
  calls.clear();
  for (unsigned rank = 0; rank < 4; ++rank) calls.push_back(Come(rank % 3, CallOf(rank, 0)));
  for (Pending& call : calls) ExpectCommitted(std::move(call));
  EXPECT_EQ(renames_, 1);
}

TEST_F(FewerRanksTest, OneThatIsKilledEndsNotTheTryOfTheOthers) {
  auto first = Come(0, CallOf(0, 2));
  auto second = Come(1, CallOf(1, 2));
  auto third = Come(2, CallOf(2, 2));
  WaitForRanks(3);
  third.Interrupt();
  EXPECT_FALSE(third.get().ok());
  ExpectCommitted(std::move(first));
  ExpectCommitted(std::move(second));
  EXPECT_EQ(renames_, 1);
}

// A rank that counted all compares the state, so who leaves meanwhile is not counted.
TEST_F(FewerRanksTest, WhoLeavesIsNotCounted) {
  auto first = Come(0, CallOf(0, 3, milliseconds(20'000)));
  WaitForRanks(1);
  auto second = Come(1, CallOf(1, 3, milliseconds(40'000)));
  auto third = Come(2, CallOf(2, 3, milliseconds(60'000)));
  WaitForRanks(3);
  hosts_[0]->line->before_commit = [&] {
    third.Interrupt();
    third.wait();
  };
  EXPECT_TRUE(Has(first.get(), "ranks 2-3 did not come"));
  EXPECT_FALSE(second.get().ok());
  EXPECT_EQ(renames_, 0);
}

TEST_F(FewerRanksTest, RanksAgreeOnThat) {
  auto first = Come(0, CallOf(0, 3));
  WaitForRanks(1);
  auto other = Come(1, CallOf(1, 2));
  EXPECT_TRUE(Has(other.get(), "with 4 ranks, at least 2, others to 'step-5' with 4 ranks, at least 3"));
  EXPECT_TRUE(Has(first.get(), "do not agree"));
  required_ = {"a", "b"};
  first = Come(0, CallOf(0, 3));
  WaitForRanks(1);
  required_ = {"a"};
  EXPECT_TRUE(Has(Come(1, CallOf(1, 3)).get(), "requiring 'a', others"));
  EXPECT_FALSE(first.get().ok());
}

TEST_F(FewerRanksTest, WrongCallsAreRefused) {
  EXPECT_TRUE(Has(Come(0, CallOf(0, 5)).get(), "at least 5 of 4 ranks"));
  required_ = {"a/b"};
  EXPECT_EQ(Come(0, CallOf(0, 2)).get().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(KeysLeft(), 0u);
}

TEST_F(FewerRanksTest, TheStateInBytes) {
  GateState state = StateOf(GatePhase::kGathering);
  const std::string plain = state.Encode();
  EXPECT_EQ(plain[0], 2) << "as older programs read it";
  state.at_least = 1;
  state.required = {"a", "bc=3"};
  const std::string bytes = state.Encode();
  EXPECT_EQ(ToHex(bytes.substr(plain.size())),
            "01000000"
            "02"
            "0161"
            "0462633d33");
  EXPECT_EQ(bytes[0], 3);
  const auto decoded = DecodeGateState(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->Encode(), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodeGateState(bytes.substr(0, size)).ok()) << size;
  EXPECT_FALSE(DecodeGateState(bytes + "x").ok());
}

}  // namespace
}  // namespace cairnfs::control
