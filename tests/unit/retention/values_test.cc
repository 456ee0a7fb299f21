#include "retention/values.h"

#include <gtest/gtest.h>

#include "cairnfs/cairnfs.h"

namespace cairnfs::retention {
namespace {

TEST(Values, AreChecked) {
  EXPECT_TRUE(CheckValue(CAIRNFS_XATTR_PINNED, "1").ok());
  EXPECT_TRUE(CheckValue(CAIRNFS_XATTR_HELD_UNTIL, "0").ok());
  EXPECT_TRUE(CheckValue(CAIRNFS_XATTR_HELD_UNTIL, "253402300799").ok());
  EXPECT_TRUE(CheckValue(CAIRNFS_XATTR_METRIC_PREFIX "loss", "-2.5e-3").ok());
  EXPECT_TRUE(CheckValue(CAIRNFS_XATTR_RETAIN, R"({"keep_last":1})").ok());
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{CAIRNFS_XATTR_PINNED, ""},
                                                        {CAIRNFS_XATTR_PINNED, "yes"},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, ""},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, "-1"},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, "1.5"},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, "253402300800"},
                                                        {CAIRNFS_XATTR_HELD_UNTIL, "99999999999999999999"},
                                                        {CAIRNFS_XATTR_METRIC_PREFIX "loss", "nan"},
                                                        {CAIRNFS_XATTR_METRIC_PREFIX "loss", "inf"},
                                                        {CAIRNFS_XATTR_METRIC_PREFIX "loss", "low"},
                                                        {CAIRNFS_XATTR_METRIC_PREFIX "loss", ""},
                                                        {CAIRNFS_XATTR_RETAIN, "{}"}}) {
    EXPECT_EQ(CheckValue(name, value).error().code, ErrorCode::kInvalidArgument) << name << "=" << value;
  }
  EXPECT_FALSE(IsRetentionAttribute(CAIRNFS_XATTR_METRIC_PREFIX));
  EXPECT_FALSE(IsRetentionAttribute(CAIRNFS_XATTR_COMMIT));
}

TEST(Values, JsonAsPythonWritesIt) {
  EXPECT_EQ(WithoutNan(R"({"a": NaN, "NaN": -Infinity, "b\"NaN": [Infinity, 1]})"),
            R"({"a": null, "NaN": null, "b\"NaN": [null, 1]})");
  EXPECT_TRUE(IsShallowJson(R"({"[[[[": [1, [2]], "b": [[3]]})", 3));
  EXPECT_FALSE(IsShallowJson(R"({"a": [[[1]]]})", 3));
}

TEST(Values, NamesOfWhatGoes) {
  EXPECT_TRUE(IsGoingName(".cairnfs-going-abcdefghijklmnop"));
  EXPECT_FALSE(IsGoingName(".cairnfs-going-"));
  EXPECT_FALSE(IsGoingName(".cairnfs-going-abcdefghijklmno1"));
  EXPECT_FALSE(IsGoingName("step-1"));
}

TEST(Values, NamesOfWhatGoesTellTheNameBefore) {
  constexpr const char* kLetters = "abcdefghijklmnop";
  for (const std::string& name : {std::string("step-1"), std::string("\xff\x01 '\""), std::string(111, 's')}) {
    const std::string going = GoingName(kLetters, name);
    EXPECT_TRUE(IsGoingName(going));
    EXPECT_EQ(NameBeforeGoing(going), name);
    EXPECT_EQ(going.find_first_of("0123456789"), std::string::npos) << "no pattern finds a step in it";
  }
  const std::string without = GoingName(kLetters, std::string(112, 's'));
  EXPECT_EQ(without, ".cairnfs-going-abcdefghijklmnop");
  EXPECT_FALSE(NameBeforeGoing(without));
  for (const std::string& name :
       {std::string("."), std::string(".."), std::string("a/b"), std::string("a\0b", 3), GoingName(kLetters, "a")}) {
    EXPECT_FALSE(NameBeforeGoing(GoingName(kLetters, name))) << name;
  }
  EXPECT_FALSE(IsGoingName(GoingName(kLetters, "") + "-"));
  EXPECT_FALSE(IsGoingName(GoingName(kLetters, "a") + "a"));
  EXPECT_FALSE(NameBeforeGoing(GoingName(kLetters, "a") + "zz"));
}

TEST(Values, MarksTellWhatStaysInside) {
  const std::string going = GoingName("abcdefghijklmnop", "step-1");
  EXPECT_EQ(RemovalMarkText({going}), going);
  EXPECT_TRUE(ParseRemovalMark(going)->keep_inside.empty());
  const std::string text = RemovalMarkText({going, {"train_ds*", "[ab]"}});
  EXPECT_EQ(text, going + "/train_ds*/[ab]");
  const auto mark = ParseRemovalMark(text);
  ASSERT_TRUE(mark.ok());
  EXPECT_EQ(mark->going, going);
  EXPECT_EQ(mark->keep_inside, (std::vector<std::string>{"train_ds*", "[ab]"}));
  std::string many = going;
  for (int i = 0; i < 17; ++i) many += "/a";
  for (const std::string& wrong : {std::string(), std::string("step-1/a"), going + "//a", going + "/a/", going + "/",
                                   going + "/[", many, GoingName("abcdefghijklmnop", std::string(112, 's')) + "/a"}) {
    EXPECT_EQ(CheckValue(CAIRNFS_XATTR_REMOVING, wrong).error().code, ErrorCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace cairnfs::retention
