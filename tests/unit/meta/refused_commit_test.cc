#include "meta/refused_commit.h"

#include <gtest/gtest.h>

#include "base/coding.h"
#include "meta/records.h"

namespace cairnfs::meta {
namespace {

const std::string kRefuser(kNodeIdBytes, 'n');
const std::string kRefusalKey = RefusalKey(InodeId{9}, kRefuser);

TEST(RefusedCommit, ComesBackAsItWas) {
  const RefusedCommit refused{.source = InodeId{9},
                              .at = {5, 6},
                              .host = "h",
                              .uid = 1000,
                              .directory = "a/b",
                              .causes = {{"a/b/c", "other", "lost"}, {.why = "full"}},
                              .left_out = 7};
  const std::string bytes = refused.Encode();
  const auto decoded = RefusedCommit::Decode(kRefusalKey, bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->source, InodeId{9});
  EXPECT_EQ(decoded->at, refused.at);
  EXPECT_EQ(decoded->host + decoded->directory, "ha/b");
  EXPECT_EQ(decoded->uid, 1000U);
  EXPECT_EQ(decoded->causes, refused.causes);
  EXPECT_EQ(decoded->left_out, 7U);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(RefusedCommit::Decode(kRefusalKey, bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(RefusedCommit::Decode(kRefusalKey, bytes + "x").ok());
  EXPECT_FALSE(RefusedCommit::Decode(kRefusalKey.substr(0, 5), bytes).ok());
  EXPECT_FALSE(RefusedCommit::Decode("J" + kRefusalKey.substr(1), bytes).ok());
  EXPECT_FALSE(RefusedCommit::Decode(kRefusalKey, std::string(1, 3) + bytes.substr(1)).ok()) << "of a later version";
}

TEST(RefusedCommit, MoreCausesThanAreKeptDoNotDecode) {
  const std::string head = RefusedCommit{}.Encode();
  for (const uint64_t count : {RefusedCommit::kCausesMax + 1, uint64_t{1} << 62}) {
    Encoder bytes;
    bytes.Text(std::string_view(head).substr(0, head.size() - 1)).Varint(count);
    for (size_t i = 0; i < RefusedCommit::kCausesMax + 1; ++i)
      bytes.LengthPrefixed("").LengthPrefixed("").LengthPrefixed("");
    EXPECT_FALSE(RefusedCommit::Decode(kRefusalKey, bytes.Take()).ok()) << count;
  }
}

// The first version had its time in the key, and a line of text for each cause.
TEST(RefusedCommit, OfTheFirstVersionIsRead) {
  const std::string key = Encoder().Text("F").BigEndianU64(5'000'000'006).Text(kRefuser).Take();
  const std::string bytes =
      Encoder().U8(1).LengthPrefixed("h").LengthPrefixed("a/b").LengthPrefixed("'a/b/c': lost\nand 3 more").Take();
  const auto decoded = RefusedCommit::Decode(key, bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->source, InodeId{});
  EXPECT_EQ(decoded->at, (Timestamp{5, 6}));
  EXPECT_EQ(decoded->host + decoded->directory, "ha/b");
  EXPECT_EQ(decoded->JoinCauses(), "'a/b/c': lost; and 3 more");
  EXPECT_EQ(decoded->causes.size(), 2U);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(RefusedCommit::Decode(key, bytes.substr(0, size)).ok()) << size;
  }
}

TEST(RefusedCommit, IsShortenedToItsBounds) {
  RefusedCommit many;
  many.causes.assign(RefusedCommit::kCausesMax + 5, {"f", "h", std::string(10'000, 'w')});
  many.causes[1].why = "short";
  many.left_out = 2;
  many.Shorten();
  size_t bytes = 0;
  for (const RefusalCause& cause : many.causes) bytes += cause.file.size() + cause.host.size() + cause.why.size();
  EXPECT_LE(bytes, RefusedCommit::kCausesBytesMax);
  EXPECT_EQ(many.causes[0].why.size(), 512U);
  EXPECT_EQ(many.causes[1].why, "short");
  EXPECT_EQ(many.causes.size() + many.left_out, RefusedCommit::kCausesMax + 7);

  RefusedCommit deep;
  deep.directory = std::string(5000, 'a') + "/step-1.tmp";
  deep.causes.assign(RefusedCommit::kCausesMax + 5, {"f", "", "lost"});
  deep.Shorten();
  EXPECT_EQ(deep.directory.size(), RefusedCommit::kDirectoryBytesMax);
  EXPECT_TRUE(deep.directory.starts_with("...a") && deep.directory.ends_with("/step-1.tmp"));
  EXPECT_EQ(deep.causes.size(), RefusedCommit::kCausesMax);
  EXPECT_EQ(deep.left_out, 5U);
}

TEST(RefusedCommit, AnErrorNamesFewCauses) {
  RefusedCommit refused{.causes = {{"a/b", "one", "lost"}, {.host = "two", .why = "full"}, {.why = "broken"}}};
  EXPECT_EQ(refused.JoinCauses(), "'a/b': host one: lost; host two: full; broken");
  refused.causes.resize(7);
  refused.left_out = 4;
  EXPECT_TRUE(refused.JoinCauses().ends_with("; and 6 more"));
}

TEST(RefusedCommit, OfADirectoryLieTogether) {
  EXPECT_TRUE(kRefusalKey.starts_with(RefusalsPrefix(InodeId{9})));
  EXPECT_TRUE(RefusalsPrefix(InodeId{9}).starts_with(RefusalsPrefix()));
  EXPECT_FALSE(RefusalKey(InodeId{10}, kRefuser).starts_with(RefusalsPrefix(InodeId{9})));
}

}  // namespace
}  // namespace cairnfs::meta
