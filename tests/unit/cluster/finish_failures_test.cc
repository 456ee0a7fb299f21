#include "cluster/finish_failures.h"

#include <gtest/gtest.h>

#include "base/types.h"

namespace cairnfs::cluster {
namespace {

FinishFailures Example() {
  return {{InodeId{7}, "step.tmp/shard", "too few nodes"}, {InodeId{1}, "", ""}, {InodeId{UINT64_MAX}, "a", "b"}};
}

TEST(FinishFailures, RoundTrip) {
  for (const FinishFailures& failures : {FinishFailures(), Example()}) {
    auto decoded = DecodeFailures(EncodeFailures(failures));
    ASSERT_TRUE(decoded.has_value());
    ASSERT_EQ(decoded->size(), failures.size());
    for (size_t i = 0; i < failures.size(); ++i) {
      EXPECT_EQ((*decoded)[i].inode, failures[i].inode);
      EXPECT_EQ((*decoded)[i].path, failures[i].path);
      EXPECT_EQ((*decoded)[i].why, failures[i].why);
    }
  }
}

TEST(FinishFailures, WhatIsCutShortOrTooLongIsRefused) {
  const std::string text = EncodeFailures(Example());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(DecodeFailures(std::string_view(text).substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(DecodeFailures(text + '\0').has_value());
}

// Neither is a count believed before there are as many.
TEST(FinishFailures, TooManyAreRefusedAndNotSent) {
  EXPECT_FALSE(DecodeFailures("\xff\xff\xff\xff\xff\xff\xff\xff\x7f").has_value());
  const FinishFailures many(20'000, {InodeId{7}, "path", "why"});
  auto told = DecodeFailures(EncodeFailures(many));
  ASSERT_TRUE(told.has_value());
  EXPECT_LT(told->size(), many.size());
  EXPECT_NE(told->back().why.find(std::to_string(many.size() - told->size()) + " more"), std::string::npos);
  const FinishFailures long_ones(40, {InodeId{7}, std::string(100 * kKiB, 'p'), "why"});
  EXPECT_LT(EncodeFailures(long_ones).size(), 2 * kMiB);
}

}  // namespace
}  // namespace cairnfs::cluster
