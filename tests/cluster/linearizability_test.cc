// The search itself, on a register: what it accepts, what it refuses, and how it ends when there is too much to try.
#include "linearizability.h"

#include <gtest/gtest.h>

#include <optional>

#include "random.h"

namespace cairnfs::testing {
namespace {

struct RegisterCall {
  bool writes = false;
  int value = 0;
  CallInterval interval;
};

RegisterCall Write(int value, int64_t begin, int64_t end) { return {true, value, {begin, end}}; }
RegisterCall Read(int value, int64_t begin, int64_t end) { return {false, value, {begin, end}}; }

class Register final : public Specification {
 public:
  explicit Register(std::vector<RegisterCall> calls) : calls_(std::move(calls)) {}
  std::string Initial() const override { return "0"; }
  std::vector<std::string> Step(const std::string& state, size_t call) const override {
    std::string value = std::to_string(calls_[call].value);
    if (calls_[call].writes) return {value};
    if (value != state) return {};
    return {state};
  }
  std::string Describe(size_t call) const override {
    return (calls_[call].writes ? "write " : "read ") + std::to_string(calls_[call].value);
  }
  std::vector<CallInterval> intervals() const {
    std::vector<CallInterval> intervals;
    for (const RegisterCall& call : calls_) intervals.push_back(call.interval);
    return intervals;
  }

 private:
  std::vector<RegisterCall> calls_;
};

Linearizability Check(std::vector<RegisterCall> calls, const SearchLimits& limits = {}) {
  Register specification(std::move(calls));
  return CheckLinearizability(specification, specification.intervals(), {}, limits).verdict;
}

TEST(LinearizabilityTest, AnEmptyHistoryIsLinearizable) { EXPECT_EQ(Check({}), Linearizability::kYes); }

TEST(LinearizabilityTest, OneAfterTheOther) {
  EXPECT_EQ(Check({Write(1, 0, 1), Read(1, 2, 3), Write(2, 4, 5), Read(2, 6, 7)}), Linearizability::kYes);
  EXPECT_EQ(Check({Write(1, 0, 1), Write(2, 2, 3), Read(1, 4, 5)}), Linearizability::kNo);
}

TEST(LinearizabilityTest, CallsThatOverlapMayBeInAnyOrder) {
  EXPECT_EQ(Check({Write(1, 0, 10), Read(0, 1, 2), Read(1, 3, 4)}), Linearizability::kYes);
  EXPECT_EQ(Check({Write(1, 0, 10), Write(2, 0, 10), Read(1, 11, 12)}), Linearizability::kYes);
}

TEST(LinearizabilityTest, WhatOneReadSawALaterOneSeesToo) {
  EXPECT_EQ(Check({Write(1, 0, 10), Read(1, 1, 2), Read(0, 3, 4)}), Linearizability::kNo);
}

TEST(LinearizabilityTest, TwoReadersAgreeOnTheOrderOfTwoWrites) {
  EXPECT_EQ(Check({Write(1, 0, 10), Write(2, 0, 10), Read(1, 1, 2), Read(2, 3, 4), Read(2, 1, 3), Read(1, 4, 5)}),
            Linearizability::kNo);
}

TEST(LinearizabilityTest, CallsThatTouchAtOneMomentMayHaveOverlapped) {
  EXPECT_EQ(Check({Write(1, 0, 5), Read(0, 5, 6)}), Linearizability::kYes);
  EXPECT_EQ(Check({Write(1, 0, 5), Read(0, 6, 7)}), Linearizability::kNo);
}

TEST(LinearizabilityTest, APendingCallMayTakeEffectLateOrNever) {
  EXPECT_EQ(Check({Write(1, 0, kNever), Read(0, 5, 6)}), Linearizability::kYes);
  EXPECT_EQ(Check({Write(1, 0, kNever), Read(0, 5, 6), Read(1, 7, 8)}), Linearizability::kYes);
  EXPECT_EQ(Check({Write(1, 0, kNever), Read(1, 5, 6), Read(0, 7, 8)}), Linearizability::kNo);
}

TEST(LinearizabilityTest, TheReportShowsWhereItEnds) {
  Register specification({Write(1, 0, 1), Write(2, 2, 3), Read(1, 4, 5)});
  SearchReport report = CheckLinearizability(specification, specification.intervals());
  EXPECT_EQ(report.order, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(report.stuck, (std::vector<size_t>{2}));
  EXPECT_NE(Explain(specification, specification.intervals(), report).find("read 1"), std::string::npos);
}

TEST(LinearizabilityTest, GivesUpAtItsLimit) {
  std::vector<RegisterCall> calls;
  for (int i = 1; i <= 12; ++i) calls.push_back(Write(i, 0, 100));
  for (int i = 0; i < 3; ++i) calls.push_back(Read(99, 101, 102));
  EXPECT_EQ(Check(calls, {.configurations_max = 1000}), Linearizability::kUnknown);
  EXPECT_EQ(Check(calls), Linearizability::kNo);
}

// All orders, without any cleverness.
bool IsLinearizableByBruteForce(const std::vector<RegisterCall>& calls, std::vector<bool>& done, int state) {
  bool all_done = true;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (done[i] || calls[i].interval.end == kNever) continue;
    all_done = false;
  }
  if (all_done) return true;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (done[i] || (!calls[i].writes && calls[i].value != state)) continue;
    bool may_be_next = true;
    for (size_t j = 0; j < calls.size(); ++j) {
      if (!done[j] && j != i && calls[j].interval.end < calls[i].interval.begin) may_be_next = false;
    }
    if (!may_be_next) continue;
    done[i] = true;
    bool found = IsLinearizableByBruteForce(calls, done, calls[i].writes ? calls[i].value : state);
    done[i] = false;
    if (found) return true;
  }
  return false;
}

TEST(LinearizabilityTest, AgreesWithTryingAllOrders) {
  Random random(11);
  int linearizable = 0;
  constexpr int kHistories = 4000;
  for (int i = 0; i < kHistories; ++i) {
    std::vector<RegisterCall> calls;
    size_t count = random.Between(1, 7);
    for (size_t j = 0; j < count; ++j) {
      int64_t begin = static_cast<int64_t>(random.Below(12));
      int64_t end = random.OneIn(8) ? kNever : begin + static_cast<int64_t>(random.Below(6));
      calls.push_back({random.OneIn(2), static_cast<int>(random.Below(3)), {begin, end}});
    }
    std::vector<bool> done(calls.size());
    bool expected = IsLinearizableByBruteForce(calls, done, 0);
    linearizable += expected;
    ASSERT_EQ(Check(calls) == Linearizability::kYes, expected) << "history " << i;
  }
  // Both answers must have been put to the test.
  EXPECT_GT(linearizable, kHistories / 5);
  EXPECT_LT(linearizable, kHistories * 4 / 5);
}

}  // namespace
}  // namespace cairnfs::testing
