#include "retention/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace cairnfs::retention {
namespace {

constexpr Timestamp kNow{.seconds = 1'000'000, .nanoseconds = 0};

// Committed a second after the one with the step before.
Checkpoint Step(int64_t step) {
  Checkpoint checkpoint;
  checkpoint.name = "step-" + std::to_string(step);
  checkpoint.committed = checkpoint.durable = true;
  checkpoint.time = {.seconds = 900'000 + step, .nanoseconds = 0};
  return checkpoint;
}

std::vector<Checkpoint> Steps(std::initializer_list<int64_t> steps) {
  std::vector<Checkpoint> checkpoints;
  for (const int64_t step : steps) checkpoints.push_back(Step(step));
  return checkpoints;
}

Judgement JudgedNow(const Policy& policy, const std::vector<Checkpoint>& checkpoints) {
  auto judgement = Judge(policy, checkpoints, kNow);
  EXPECT_TRUE(judgement.ok());
  EXPECT_EQ(judgement->verdicts.size(), checkpoints.size());
  for (const Verdict& verdict : judgement->verdicts) EXPECT_FALSE(verdict.reason.empty());
  return *std::move(judgement);
}

// The names of those that go, in the order in which they were given.
std::string Going(const Policy& policy, const std::vector<Checkpoint>& checkpoints) {
  const Judgement judgement = JudgedNow(policy, checkpoints);
  std::string names;
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    if (judgement.verdicts[i].goes) names += (names.empty() ? "" : " ") + checkpoints[i].name;
  }
  return names;
}

std::string ReasonOf(const Policy& policy, const std::vector<Checkpoint>& checkpoints, size_t which) {
  return JudgedNow(policy, checkpoints).verdicts[which].reason;
}

TEST(Judge, TheLastStay) {
  EXPECT_EQ(Going({.keep_last = 2}, Steps({1, 4, 2, 3})), "step-1 step-2");
  EXPECT_EQ(Going({.keep_last = 9}, Steps({1, 2, 3})), "");
  EXPECT_EQ(Going({.keep_last = 1}, {}), "");
  EXPECT_EQ(ReasonOf({.keep_last = 2}, Steps({1, 2, 3}), 1), "among the last 2 (keep-last)");
  EXPECT_EQ(ReasonOf({.keep_last = 2}, Steps({1, 2, 3}), 0), "not among the last 2 (keep-last)");
}

TEST(Judge, EachRuleKeeps) {
  EXPECT_EQ(Going({.keep_last = 1, .keep_every = 10}, Steps({5, 10, 15, 20, 25})), "step-5 step-15");
  const auto checkpoints = Steps({5, 10, 15});
  EXPECT_EQ(ReasonOf({.keep_last = 1, .keep_every = 10}, checkpoints, 0),
            "not among the last 1 (keep-last); 10 does not divide its step (keep-every)");
  const Policy for_long{.keep_for = std::chrono::seconds(100'000 - 10)};  // step 10 has just become too old
  EXPECT_EQ(Going(for_long, checkpoints), "step-5 step-10");
  auto future = checkpoints;
  future[0].time.seconds = 2'000'000;
  EXPECT_EQ(Going(for_long, future), "step-10");
}

TEST(Judge, TheBestStay) {
  auto checkpoints = Steps({1, 2, 3, 4, 5, 6});
  const double losses[] = {0.5, 0.1, 0.3, 0.1, 0.9};
  for (size_t i = 0; i < 5; ++i) checkpoints[i].metrics["loss"] = losses[i];
  const auto best = [](Better better, uint64_t count) { return Policy{.keep_best = {{"loss", better, count}}}; };
  EXPECT_EQ(Going(best(Better::kMin, 1), checkpoints), "step-1 step-2 step-3 step-5");  // of equal ones the newer
  EXPECT_EQ(Going(best(Better::kMin, 3), checkpoints), "step-1 step-5");
  EXPECT_EQ(Going(best(Better::kMax, 2), checkpoints), "step-2 step-3 step-4");
  checkpoints[0].metrics["loss"] = std::nan("");
  checkpoints[4].metrics["loss"] = -INFINITY;
  Policy policy = best(Better::kMin, 1);
  EXPECT_EQ(Going(policy, checkpoints), "step-1 step-2 step-3 step-5");
  EXPECT_EQ(ReasonOf(policy, checkpoints, 0), "it has no loss (keep-best)");
  const auto notes = JudgedNow(policy, checkpoints).notes;
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_EQ(notes[0], "loss of step-1 is nan: it is to be a finite number, and counts as missing");
  policy.keep_without_metric = true;
  EXPECT_EQ(Going(policy, checkpoints), "step-2 step-3");
}

TEST(Judge, WhatIsOpenTakesNoPlace) {
  auto checkpoints = Steps({1, 2, 3});
  checkpoints[2].open = true;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "step-1");
  EXPECT_EQ(ReasonOf({.keep_last = 1}, checkpoints, 2), "it is not older than the newest durable one");
}

TEST(Judge, TimesOfLongAgoAndFarAheadAreNoTrouble) {
  auto checkpoints = Steps({1, 2, 3});
  checkpoints[0].time.seconds = INT64_MIN;
  checkpoints[1].time.seconds = INT64_MAX;
  EXPECT_EQ(Going({.keep_for = std::chrono::seconds(10)}, checkpoints), "step-1");
}

TEST(Judge, SomeNeverGo) {
  auto checkpoints = Steps({1, 2, 3, 4, 5});
  checkpoints[0].pinned = true;
  checkpoints[1].held_until = Timestamp{.seconds = kNow.seconds + 1, .nanoseconds = 0};
  checkpoints[2].open = true;
  checkpoints[3].unknown = "nobody knows";
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "");
  EXPECT_EQ(ReasonOf({.keep_last = 1}, checkpoints, 3), "nobody knows");
  checkpoints[1].held_until = kNow;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "step-2");
}

TEST(Judge, WhatIsNotOlderThanTheNewestDurableOneStays) {
  auto checkpoints = Steps({1, 2, 3, 4});
  checkpoints[3].durable = false;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "step-1 step-2");
  checkpoints[2].durable = false;  // takes no place either
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "step-1");
  for (auto& one : checkpoints) one.durable = false;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "");
  EXPECT_EQ(ReasonOf({.keep_last = 1}, checkpoints, 0), "none is durable yet");
}

// A run that went back to an earlier step: what it commits now is the newest by time.
TEST(Judge, TheLastCommitStays) {
  auto checkpoints = Steps({100, 200, 300, 150});
  checkpoints[3].time.seconds += 1000;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "step-100 step-200");
  EXPECT_EQ(ReasonOf({.keep_last = 1}, checkpoints, 3), "none that is durable was committed later");
}

TEST(Judge, PatternsSayWhatTakesPart) {
  auto checkpoints = Steps({1, 2, 3});
  checkpoints[0].name = "best-1";
  checkpoints.push_back(Step(9));
  checkpoints.back().name = "step-99999999999999999999";
  const Policy policy{.keep_last = 1, .match = "step-(\\d+)"};
  EXPECT_EQ(Going(policy, checkpoints), "step-2");
  EXPECT_EQ(ReasonOf(policy, checkpoints, 0), "the pattern does not match its name");
  EXPECT_NE(ReasonOf(policy, checkpoints, 3).find("below 2^63"), std::string::npos);
  // Without one, what was not committed may be anything.
  checkpoints = Steps({1, 2, 3});
  checkpoints[0].committed = checkpoints[1].committed = false;
  checkpoints[2].committed = true;
  EXPECT_EQ(Going({.keep_last = 1}, checkpoints), "");
  EXPECT_EQ(Going(policy, checkpoints), "step-1 step-2");
}

TEST(Judge, TheSameStepTwiceIsTold) {
  auto checkpoints = Steps({1, 1, 2});
  checkpoints[1].name = "step-01";
  checkpoints[1].time.seconds -= 10;
  const auto judgement = JudgedNow({.keep_last = 2}, checkpoints);
  ASSERT_EQ(judgement.notes.size(), 1u);
  EXPECT_EQ(judgement.notes[0],
            "step 1 is there twice, as step-1 and step-01: each counts, and the later one is newer");
  EXPECT_EQ(Going({.keep_last = 2}, checkpoints), "step-01");
}

TEST(Judge, RefusesAWrongPolicy) {
  EXPECT_EQ(Judge({}, Steps({1}), kNow).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(Judge({.keep_last = 0}, Steps({1}), kNow).error().code, ErrorCode::kInvalidArgument);
}

// Random histories against a model that counts by comparing each with each.
class Model {
 public:
  Model(const Policy& policy, const std::vector<Checkpoint>& all) : policy_(policy), all_(all) {}

  bool Goes(const Checkpoint& one) const {
    if (!TakesPart(one) || one.pinned || one.open || !one.unknown.empty()) return false;
    if (one.held_until && *one.held_until > kNow) return false;
    bool is_below_newest = false, is_before_last = false;
    for (const Checkpoint& other : all_) {
      if (!TakesPart(other) || !other.durable || other.open) continue;
      is_below_newest = is_below_newest || IsNewer(other, one);
      is_before_last = is_before_last || other.time > one.time;
    }
    return is_below_newest && is_before_last && !IsKept(one);
  }

 private:
  static uint64_t StepOf(const Checkpoint& one) { return std::stoull(one.name.substr(one.name.find('-') + 1)); }
  static bool IsNewer(const Checkpoint& left, const Checkpoint& right) {
    if (StepOf(left) != StepOf(right)) return StepOf(left) > StepOf(right);
    return left.time > right.time;
  }
  bool TakesPart(const Checkpoint& one) const {
    return policy_.match.empty() ? one.committed : one.name.starts_with("step-");
  }
  uint64_t Count(const std::function<bool(const Checkpoint&)>& is_one) const {
    uint64_t count = 0;
    for (const Checkpoint& other : all_)
      count += TakesPart(other) && other.durable && !other.open && is_one(other) ? 1 : 0;
    return count;
  }
  bool IsKept(const Checkpoint& one) const {
    if (policy_.keep_last && Count([&](const auto& other) { return IsNewer(other, one); }) < *policy_.keep_last)
      return true;
    if (policy_.keep_every && StepOf(one) % *policy_.keep_every == 0) return true;
    if (policy_.keep_for && kNow.seconds - one.time.seconds < policy_.keep_for->count()) return true;
    for (const BestRule& rule : policy_.keep_best) {
      if (!one.metrics.contains(rule.metric) && policy_.keep_without_metric) return true;
      if (!one.metrics.contains(rule.metric)) continue;
      const double own = one.metrics.at(rule.metric);
      const auto is_better = [&](const Checkpoint& other) {
        if (!other.metrics.contains(rule.metric)) return false;
        const double value = other.metrics.at(rule.metric);
        if (value == own) return IsNewer(other, one);
        return rule.better == Better::kMin ? value < own : value > own;
      };
      if (Count(is_better) < rule.count) return true;
    }
    return false;
  }

  const Policy& policy_;
  const std::vector<Checkpoint>& all_;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(random_); }
  bool OneIn(uint64_t count) { return Below(count) == 0; }

  Policy DrawPolicy() {
    Policy policy;
    if (OneIn(2)) policy.keep_last = 1 + Below(4);
    if (OneIn(2)) policy.keep_every = 1 + Below(6);
    if (OneIn(2)) policy.keep_for = std::chrono::seconds(1 + Below(30));
    for (const char* metric : {"loss", "acc"}) {
      if (OneIn(3)) policy.keep_best.push_back({metric, OneIn(2) ? Better::kMin : Better::kMax, 1 + Below(3)});
    }
    policy.keep_without_metric = !policy.keep_best.empty() && OneIn(3);
    if (OneIn(2)) policy.match = "step-(\\d+)";
    if (!policy.HasRules()) policy.keep_last = 1;
    return policy;
  }
  Checkpoint DrawCheckpoint(size_t number) {
    Checkpoint one;
    // Leading zeros make names of one step differ.
    const std::string step = std::string(number, '0') + std::to_string(Below(25));
    one.name = (OneIn(6) ? "other-" : "step-") + step;
    one.committed = !OneIn(4);
    one.durable = !OneIn(3);
    one.time.seconds = kNow.seconds - static_cast<int64_t>(Below(30)) + 3;
    one.pinned = OneIn(12);
    one.open = OneIn(12);
    if (OneIn(6))
      one.held_until = Timestamp{.seconds = kNow.seconds - 2 + static_cast<int64_t>(Below(5)), .nanoseconds = 0};
    if (OneIn(20)) one.unknown = "nobody knows";
    for (const char* metric : {"loss", "acc"}) {
      if (!OneIn(3)) one.metrics[metric] = static_cast<double>(Below(6));
    }
    return one;
  }

 private:
  std::mt19937_64 random_;
};

TEST(Judge, AgreesWithAModel) {
  constexpr uint64_t kRounds = 5000;
  uint64_t gone = 0;
  for (uint64_t seed = 1; seed <= kRounds; ++seed) {
    Draw draw(seed);
    const Policy policy = draw.DrawPolicy();
    std::vector<Checkpoint> all;
    for (size_t count = draw.Below(12); all.size() < count;) all.push_back(draw.DrawCheckpoint(all.size()));
    const Judgement judgement = JudgedNow(policy, all);
    const Model model(policy, all);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(judgement.verdicts[i].goes, model.Goes(all[i]))
          << "seed " << seed << ", " << all[i].name << ": " << judgement.verdicts[i].reason;
      gone += judgement.verdicts[i].goes ? 1 : 0;
    }
  }
  EXPECT_GT(gone, kRounds / 2);  // or it proves nothing
}

// What was judged is judged the same again once what goes is gone, and more commits bring none of that back.
TEST(Judge, ASecondLookFindsNothingMore) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    Draw draw(seed);
    const Policy policy = draw.DrawPolicy();
    std::vector<Checkpoint> all;
    for (size_t count = draw.Below(12); all.size() < count;) all.push_back(draw.DrawCheckpoint(all.size()));
    const Judgement first = JudgedNow(policy, all);
    std::vector<Checkpoint> left;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!first.verdicts[i].goes) left.push_back(all[i]);
    }
    EXPECT_EQ(Going(policy, left), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace cairnfs::retention
