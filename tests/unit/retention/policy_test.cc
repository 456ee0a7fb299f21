#include "retention/policy.h"

#include <gtest/gtest.h>

namespace cairnfs::retention {
namespace {

std::string WhyText(const std::string& text) {
  const auto policy = ParsePolicy(text);
  return policy.ok() ? "" : policy.error().message;
}

TEST(Policy, IsReadBackAsItWas) {
  const Policy policy{.keep_last = 3,
                      .keep_every = 1000,
                      .keep_best = {{"eval/val:loss", Better::kMin, 2}, {"acc", Better::kMax, 1}},
                      .keep_for = std::chrono::hours(24 * 30),
                      .keep_without_metric = true,
                      .match = "step-(\\d+)",
                      .metrics_file = "m.json",
                      .keep_inside = {"train_ds*", "opt[!0]"},
                      .abandoned = {{"*.tmp*", std::chrono::hours(24)}, {"a:b", std::chrono::seconds(1)}}};
  const auto back = ParsePolicy(PolicyText(policy));
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, policy);
  const Policy one{.keep_every = 5};
  EXPECT_EQ(PolicyText(one), R"({"keep_every":5})");
  EXPECT_EQ(*ParsePolicy(PolicyText(one)), one);
}

TEST(Policy, WrongOnesSayWhatIsRight) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "an object in JSON"},
           {"[]", "an object in JSON"},
           {"{}", "says what stays"},
           {R"-({"match":"(\\d+)"})-", "says what stays"},
           {R"({"keep_last":0})", "from 1 to 2^63 - 1, not 0"},
           {R"({"keep_last":-1})", "from 1 on, not -1"},
           {R"({"keep_last":"3"})", "from 1 on, not \"3\""},
           {R"({"keep_last":9223372036854775808})", "from 1 to 2^63 - 1"},
           {R"({"keep_every":0})", "keep-every is to be a whole number"},
           {R"({"keep_for_seconds":0})", "at least a second"},
           {R"({"keep_for_seconds":-5})", "from 1 on, not -5"},
           {R"({"keep_for_seconds":9223372036854775807})", "keep-for"},
           {R"({"keep_lots":1})", "no key keep_lots"},
           {R"({"keep_last":1,"keep_without_metric":1})", "true or false"},
           {R"({"keep_last":1,"keep_without_metric":true})", "is for keep-best"},
           {R"({"keep_best":[{"metric":"a","better":"least","count":1}]})", "\"min\" or \"max\""},
           {R"({"keep_best":[{"metric":"a","better":"min","count":0}]})", "the count of keep_best"},
           {R"({"keep_best":[{"metric":"","better":"min","count":1}]})", "the name of a metric"},
           {R"({"keep_last":1,"match":"step-\\d+"})", "has 0 groups; it is to have one"},
           {R"-({"keep_last":1,"match":"(a)(b)"})-", "has 2 groups"},
           {R"-({"keep_last":1,"match":"(a)\\1"})-", "is no regular expression"},
           {R"({"keep_last":1,"metrics_file":"../x"})", "the name of a file right in the checkpoint"},
           {R"({"keep_last":1,"metrics_file":".."})", "the name of a file right in the checkpoint"},
           {R"({"keep_last":1,"keep_inside":"a*"})", "keep_inside (at most 16 patterns)"},
           {R"({"keep_last":1,"keep_inside":[1]})", "each of keep_inside of a policy is to be a text"},
           {R"({"keep_last":1,"keep_inside":[""]})", "is empty"},
           {R"({"keep_last":1,"keep_inside":["a/b"]})", "has a slash, which no name has; right is"},
           {R"({"keep_last":1,"keep_last":2})", "each key once, and not keep_last twice"},
           {R"({"keep_best":[{"metric":"a","better":"min","count":1,"count":2}]})", "and not count twice"},
           {R"({"keep_inside":["a"]})", "says what stays"},
           {R"({"abandoned":[{"pattern":"a","unwritten_seconds":1}]})", "says what stays"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"a"}]})", "the keys pattern (a text) and unwritten_seconds"},
           {R"({"keep_last":1,"abandoned":[{"pattern":1,"unwritten_seconds":1}]})", "the keys pattern (a text)"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"a","unwritten_seconds":-1}]})", "from 1 on, not -1"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"a","unwritten_seconds":0}]})", "at least a second"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"a","unwritten_seconds":9223372036854775807}]})", "not 9223372"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"a/b","unwritten_seconds":1}]})", "has a slash"},
           {R"({"keep_last":1,"abandoned":[{"pattern":"","unwritten_seconds":1}]})", "is empty"},
           {R"({"keep_last":1,"abandoned":"*.tmp*:24h"})", "abandoned (at most 16 rules)"},
           {std::string(kPolicyBytesMax + 1, ' '), "at most 16384 bytes"},
           {std::string(kPolicyBytesMax, '['), "no values that lie as deep"},
           {R"({"keep_last":)" + std::string(8000, '[') + std::string(8000, ']') + "}",
            "no values that lie as deep"}}) {
    EXPECT_NE(WhyText(text).find(words), std::string::npos) << text << ": " << WhyText(text);
  }
}

TEST(Policy, WordsOfTheCommandLine) {
  EXPECT_EQ(*ParseBestRule("val_loss:min:2"), (BestRule{"val_loss", Better::kMin, 2}));
  EXPECT_EQ(*ParseBestRule("a:b:max:1"), (BestRule{"a:b", Better::kMax, 1}));
  for (const char* text :
       {"", ":", "::", "a", "a:min", "a:min:", "a:min:0", "a:min:-1", "a:min:x", ":min:1", "a:MIN:1"}) {
    EXPECT_FALSE(ParseBestRule(text).ok()) << text;
  }
  EXPECT_EQ(*ParseCount("--keep-last", "12"), 12u);
  for (const char* text : {"", "0", "-3", "+3", "3x", " 3", "1e3", "9223372036854775808", "99999999999999999999"}) {
    const auto count = ParseCount("--keep-last", text);
    ASSERT_FALSE(count.ok()) << text;
    EXPECT_NE(count.error().message.find("--keep-last is to be a whole number from 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace cairnfs::retention
