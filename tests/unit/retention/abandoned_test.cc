#include "retention/abandoned.h"

#include <gtest/gtest.h>

#include <random>

#include "retention/values.h"

namespace cairnfs::retention {
namespace {

using std::chrono::seconds;

constexpr int64_t kNowSeconds = 1'000'000;
constexpr Timestamp kAbandonedNow{.seconds = kNowSeconds, .nanoseconds = 0};

Policy PolicyWith(std::vector<AbandonedRule> rules, std::string match = {}) {
  return {.keep_last = 1, .match = std::move(match), .abandoned = std::move(rules)};
}

// Nothing was written below it for so long.
Temporary WrittenBefore(const std::string& name, int64_t before) {
  Temporary one;
  one.name = name;
  one.written = {.seconds = kNowSeconds - before, .nanoseconds = 0};
  return one;
}

Verdict JudgedOf(const Policy& policy, const Temporary& one) {
  const auto rules = AbandonedRules::Of(policy);
  EXPECT_TRUE(rules.ok());
  EXPECT_TRUE(rules->TimeFor(one.name)) << one.name;
  return rules->Judge(one, kAbandonedNow);
}

TEST(Abandoned, ItGoesOnceNothingWasWrittenForLong) {
  const Policy policy = PolicyWith({{"*.tmp*", seconds(100)}});
  EXPECT_FALSE(JudgedOf(policy, WrittenBefore("a.tmp", 99)).goes);
  EXPECT_TRUE(JudgedOf(policy, WrittenBefore("a.tmp", 100)).goes);
  EXPECT_FALSE(JudgedOf(policy, WrittenBefore("a.tmp", -5)).goes) << "of a clock that is ahead";
  Temporary far = WrittenBefore("a.tmp", 0);
  far.written.seconds = INT64_MAX;
  EXPECT_FALSE(JudgedOf(policy, far).goes);
  EXPECT_NE(JudgedOf(policy, WrittenBefore("a.tmp", 1)).reason.find("something was written below it at"),
            std::string::npos);
}

TEST(Abandoned, WhatIsKeptStays) {
  const Policy policy = PolicyWith({{"*.tmp*", seconds(100)}});
  const auto reason_with = [&](auto change) {
    Temporary one = WrittenBefore("a.tmp", 1000);
    change(one);
    const Verdict verdict = JudgedOf(policy, one);
    return verdict.goes ? "it goes" : verdict.reason;
  };
  EXPECT_EQ(reason_with([](Temporary&) {}), "it goes");
  EXPECT_EQ(reason_with([](Temporary& one) { one.pinned = true; }), "it is pinned");
  EXPECT_EQ(reason_with([](Temporary& one) { one.open = true; }), "a process has a file below it open");
  EXPECT_EQ(reason_with([](Temporary& one) { one.unknown = "nobody knows"; }), "nobody knows");
  EXPECT_EQ(reason_with([](Temporary& one) { one.committed = true; }), "it was committed");
  EXPECT_EQ(reason_with([](Temporary& one) { one.held_until = kAbandonedNow; }), "it goes");
  EXPECT_NE(reason_with([](Temporary& one) {
              one.held_until = Timestamp{.seconds = kNowSeconds + 1, .nanoseconds = 0};
            }).find("it is held until"),
            std::string::npos);
}

TEST(Abandoned, RulesAreAboutNames) {
  const auto rules = AbandonedRules::Of(
      PolicyWith({{"*.tmp*", seconds(10)}, {"*.tmp-big", seconds(500)}, {"*", seconds(30)}}, "step-(\\d+)(?:.tmp1)?"));
  ASSERT_TRUE(rules.ok());
  EXPECT_EQ(rules->TimeFor("a.tmp"), seconds(30)) << "the longest";
  EXPECT_EQ(rules->TimeFor("a.tmp-big"), seconds(500));
  EXPECT_EQ(rules->TimeFor("step-7.tmp"), seconds(30));
  for (const std::string& other : {std::string("step-7"), std::string("step-7.tmp1"),
                                   std::string("step-99999999999999999999"), GoingName("abcdefghijklmnop", "a.tmp")}) {
    EXPECT_FALSE(rules->TimeFor(other)) << other;
  }
  // Without a pattern nobody has said that what was not committed is a checkpoint.
  EXPECT_EQ(AbandonedRules::Of(PolicyWith({{"*.tmp", seconds(10)}}))->TimeFor("step-7.tmp"), seconds(10));
  EXPECT_FALSE(AbandonedRules::Of(PolicyWith({{"*.tmp", seconds(10)}}))->TimeFor("step-7"));
  EXPECT_TRUE(AbandonedRules::Of(PolicyWith({}))->empty());
  EXPECT_EQ(AbandonedRules::Of(PolicyWith({{"a/b", seconds(1)}})).error().code, ErrorCode::kInvalidArgument);
}

// Random directories against a model that looks at each rule by itself.
TEST(Abandoned, AgreesWithAModel) {
  std::mt19937_64 random(1);
  const auto below = [&](int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random); };
  const std::vector<std::string> names{"a.tmp", "b.tmp", "step-1", "step-2.tmp"};
  int gone = 0;
  for (int round = 0; round < 5000; ++round) {
    std::vector<AbandonedRule> drawn;
    for (const std::string& name : names) {
      while (drawn.size() < kGlobsMax && below(2) == 0) drawn.push_back({name, seconds(1 + below(20))});
    }
    const bool has_match = below(2) == 0;
    const Policy policy = PolicyWith(drawn, has_match ? "step-(\\d+)" : "");
    Temporary one = WrittenBefore(names[static_cast<size_t>(below(4))], below(25) - 2);
    one.committed = below(8) == 0;
    one.pinned = below(8) == 0;
    one.open = below(8) == 0;
    if (below(4) == 0) one.held_until = Timestamp{.seconds = kNowSeconds - 2 + below(5), .nanoseconds = 0};
    bool is_named = false, is_recent = false;
    for (const AbandonedRule& rule : drawn) {
      if (rule.pattern != one.name) continue;
      is_named = true;
      is_recent = is_recent || kNowSeconds - one.written.seconds < rule.unwritten_for.count();
    }
    const bool is_checkpoint = has_match && one.name == "step-1";
    const auto rules = AbandonedRules::Of(policy);
    ASSERT_TRUE(rules.ok());
    ASSERT_EQ(rules->TimeFor(one.name).has_value(), is_named && !is_checkpoint) << "round " << round;
    if (!is_named || is_checkpoint) continue;
    const bool is_held = one.held_until && one.held_until->seconds > kNowSeconds;
    const bool goes = !is_recent && !one.committed && !one.pinned && !one.open && !is_held;
    ASSERT_EQ(rules->Judge(one, kAbandonedNow).goes, goes) << "round " << round;
    gone += goes ? 1 : 0;
  }
  EXPECT_GT(gone, 200);  // or it proves nothing
}

}  // namespace
}  // namespace cairnfs::retention
