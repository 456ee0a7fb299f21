#include "retention/glob.h"

#include <gtest/gtest.h>

namespace cairnfs::retention {
namespace {

bool IsMatch(std::string_view pattern, std::string_view name) {
  const auto glob = Glob::Parse(pattern);
  EXPECT_TRUE(glob.ok()) << pattern << ": " << glob.error().message;
  return glob.ok() && glob->Matches(name);
}

TEST(Glob, MatchesWholeNamesAsTheShellDoes) {
  EXPECT_TRUE(IsMatch("train_ds*", "train_ds"));
  EXPECT_TRUE(IsMatch("train_ds*", "train_ds-000-of-128"));
  EXPECT_FALSE(IsMatch("train_ds*", "a-train_ds"));
  EXPECT_FALSE(IsMatch("train_ds", "train_ds-1"));
  EXPECT_TRUE(IsMatch("*.tmp*", "step-3.tmp"));
  EXPECT_TRUE(IsMatch("*.tmp*", ".tmp"));
  EXPECT_FALSE(IsMatch("*.tmp*", "step-3-tmp"));
  EXPECT_TRUE(IsMatch("step-?", "step-3"));
  EXPECT_FALSE(IsMatch("step-?", "step-33"));
  EXPECT_TRUE(IsMatch("*", "a\nb"));
  EXPECT_TRUE(IsMatch("?", "\xff"));
  EXPECT_TRUE(IsMatch("[a-c][!0-9]", "bz"));
  EXPECT_FALSE(IsMatch("[a-c][!0-9]", "b7"));
  EXPECT_FALSE(IsMatch("[^ab]", "a"));
  EXPECT_TRUE(IsMatch("[]x]", "]"));
  EXPECT_TRUE(IsMatch("[!]x]", "a"));
  EXPECT_FALSE(IsMatch("[!]x]", "]"));
  EXPECT_TRUE(IsMatch("\\*\\[", "*["));
  EXPECT_FALSE(IsMatch("\\*", "a"));
  EXPECT_TRUE(IsMatch("a\\", "a\\"));
  EXPECT_TRUE(IsMatch("(a|b)+.\\{2\\}$", "(a|b)+.{2}$"));
  EXPECT_FALSE(IsMatch("(a|b)", "a"));
}

TEST(Glob, WrongOnesSayWhatIsRight) {
  for (const auto& [pattern, words] :
       std::vector<std::pair<std::string, std::string>>{{"", "is empty"},
                                                        {"a/b", "has a slash"},
                                                        {"/", "has a slash"},
                                                        {std::string("a\0", 2), "has a byte 0"},
                                                        {"[abc", "has a [ without a ]"},
                                                        {"[]", "has a [ without a ]"},
                                                        {"[z-a]", "cannot be taken"},
                                                        {"a[[:digit:]]", "write it out, as [0-9]"},
                                                        {"[\\]x]", "has a \\ in brackets"},
                                                        {"{a,b}*", "has braces"},
                                                        {std::string(256, 'a'), "more than 255 bytes"}}) {
    const auto glob = Glob::Parse(pattern);
    ASSERT_FALSE(glob.ok()) << pattern;
    EXPECT_EQ(glob.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(glob.error().message.find(words), std::string::npos) << glob.error().message;
    EXPECT_NE(glob.error().message.find("right is one as 'train_ds*'"), std::string::npos) << glob.error().message;
  }
  EXPECT_FALSE(ParseGlobs(std::vector<std::string>(kGlobsMax + 1, "a")).ok());
  EXPECT_FALSE(ParseGlobs({"a", ""}).ok());
}

// One that tries all ways would take longer than anybody waits.
TEST(Glob, TakesLinearTime) {
  std::string pattern;
  for (int i = 0; i < 60; ++i) pattern += "*a";
  EXPECT_FALSE(IsMatch(pattern + "b", std::string(255, 'a')));
}

}  // namespace
}  // namespace cairnfs::retention
