// What must be there before ranks may commit.
#include "control/required_files.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

std::string MissingOf(const std::vector<std::string>& requirements, const std::vector<std::string>& names) {
  auto required = RequiredFiles::Parse(requirements);
  EXPECT_TRUE(required.ok());
  for (const std::string& name : names) required->Add(name);
  return required->Missing();
}

TEST(RequiredFilesTest, OneMustMatch) {
  EXPECT_EQ(MissingOf({}, {}), "");
  EXPECT_EQ(MissingOf({"*.json"}, {"a.bin"}), "of 1 files '*.json' none is there");
  EXPECT_EQ(MissingOf({"*.json"}, {"a.bin", "b.json"}), "");
  EXPECT_EQ(MissingOf({"a", "b", "c"}, {"b"}), "of 1 files 'a' none is there, of 1 files 'c' none is there");
}

TEST(RequiredFilesTest, NamesThatSayOfHowManyTheyAre) {
  const std::string pattern = "shard-*-of-0003*";
  EXPECT_EQ(MissingOf({pattern}, {"shard-00000-of-0003.bin", "shard-00002-of-0003.bin", "shard-9-of-0004.bin"}),
            "of 3 files 'shard-*-of-0003*' 2 are there");
  EXPECT_EQ(MissingOf({pattern}, {"shard-0-of-0003.a", "shard-0-of-0003.b", "shard-1-of-0003.a"}),
            "of 3 files 'shard-*-of-0003*' 2 are there")
      << "two files with one number are one part";
  EXPECT_EQ(MissingOf({pattern}, {"shard-0-of-0003", "shard-1-of-0003", "shard-2-of-0003"}), "");
  EXPECT_EQ(MissingOf({pattern}, {"shard-1-of-0003", "shard-2-of-0003", "shard-3-of-0003"}), "");
  // Of what was left of a job with other shards, all are needed too.
  EXPECT_EQ(MissingOf({"shard-*"}, {"shard-0-of-1", "shard-0-of-2"}), "of 2 files 'shard-*' 1 are there");
  EXPECT_EQ(MissingOf({"*"}, {"a-of-b", "1-of-", "-of-2", "1-of-0", "1-of-99999999999999999999"}), "");
  EXPECT_EQ(MissingOf({"*"}, {"1-of-2-of-x"}), "of 2 files '*' 1 are there") << "the last that is one counts";
}

TEST(RequiredFilesTest, ACountIsWhatIsNeeded) {
  EXPECT_EQ(MissingOf({"shard-*=2"}, {"shard-0-of-8"}), "of 2 files 'shard-*=2' 1 are there");
  EXPECT_EQ(MissingOf({"shard-*=2"}, {"shard-0-of-8", "shard-1-of-8"}), "");
  EXPECT_EQ(MissingOf({"a[=]8"}, {"a=8"}), "");
  EXPECT_EQ(MissingOf({"a=x"}, {"a=x"}), "");
}

TEST(RequiredFilesTest, WrongOnesAreTold) {
  const std::vector<std::vector<std::string>> wrong = {{""},          {"a/b"},
                                                       {"a=0"},       {"=4"},
                                                       {"a=1000001"}, {"a=99999999999999999999999"},
                                                       {"["},         std::vector<std::string>(17, "a")};
  for (const auto& requirements : wrong) {
    const auto parsed = RequiredFiles::Parse(requirements);
    ASSERT_FALSE(parsed.ok()) << requirements[0];
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(parsed.error().message.find("--require"), std::string::npos) << parsed.error().message;
  }
}

}  // namespace
}  // namespace cairnfs::control
