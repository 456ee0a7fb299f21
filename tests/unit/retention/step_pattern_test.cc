#include "retention/step_pattern.h"

#include <gtest/gtest.h>

namespace cairnfs::retention {
namespace {

std::optional<uint64_t> StepOf(const std::string& pattern, const std::string& name) {
  const auto parsed = StepPattern::Parse(pattern);
  EXPECT_TRUE(parsed.ok());
  const auto step = parsed->StepOf(name);
  EXPECT_TRUE(step.ok());
  return step.ok() ? *step : std::nullopt;
}

std::string WhyPattern(const std::string& pattern) {
  const auto parsed = StepPattern::Parse(pattern);
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(StepPattern, TheLastNumberIsTheStep) {
  EXPECT_EQ(StepOf("", "step-100"), 100u);
  EXPECT_EQ(StepOf("", "epoch=3-step=2500.ckpt"), 2500u);
  EXPECT_EQ(StepOf("", "0007"), 7u);
  EXPECT_EQ(StepOf("", "latest"), std::nullopt);
}

TEST(StepPattern, AGroupFindsTheStepOfAWholeName) {
  EXPECT_EQ(StepOf("step-(\\d+)", "step-12"), 12u);
  EXPECT_EQ(StepOf("step-(\\d+)", "step-12.tmp"), std::nullopt);
  EXPECT_EQ(StepOf("(?:epoch|e)=\\d+-step=(\\d+)", "e=1-step=9"), 9u);
  EXPECT_EQ(StepOf(std::string("step-(\\d+)"), std::string("\xff\xfe")), std::nullopt);
}

TEST(StepPattern, WrongOnesSayWhatIsRight) {
  EXPECT_NE(WhyPattern("step-\\d+").find("has 0 groups; it is to have one"), std::string::npos);
  EXPECT_NE(WhyPattern("(s)tep-(\\d+)").find("has 2 groups"), std::string::npos);
  EXPECT_NE(WhyPattern("step-(").find("is no regular expression"), std::string::npos);
  EXPECT_NE(WhyPattern("(a)\\1").find("is no regular expression"), std::string::npos);  // it would have to backtrack
}

TEST(StepPattern, StepsOutOfRangeAreErrors) {
  const auto pattern = StepPattern::Parse("step-(.*)");
  ASSERT_TRUE(pattern.ok());
  EXPECT_TRUE(pattern->StepOf("step-9223372036854775807").ok());
  for (const char* name : {"step-9223372036854775808", "step-99999999999999999999", "step--1", "step-x", "step-"}) {
    const auto step = pattern->StepOf(name);
    ASSERT_FALSE(step.ok()) << name;
    EXPECT_NE(step.error().message.find("is to be a whole number below 2^63"), std::string::npos);
  }
}

// Would take for ever where it backtracks.
TEST(StepPattern, AHostilePatternTakesLinearTime) {
  EXPECT_EQ(StepOf("(?:a*)*(?:a*)*(?:a|aa)+b(\\d+)", std::string(200, 'a')), std::nullopt);
}

}  // namespace
}  // namespace cairnfs::retention
