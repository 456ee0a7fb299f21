#include "base/comma_list.h"

#include <gtest/gtest.h>

namespace cairnfs {
namespace {

using Words = std::vector<std::string_view>;

TEST(SplitAtCommas, KeepsEmptyWords) {
  EXPECT_EQ(SplitAtCommas("a"), Words({"a"}));
  EXPECT_EQ(SplitAtCommas("a,bc"), Words({"a", "bc"}));
  EXPECT_EQ(SplitAtCommas("a,,b,"), Words({"a", "", "b", ""}));
  EXPECT_EQ(SplitAtCommas(","), Words({"", ""}));
}

TEST(SplitAtCommas, OfNothingThereAreNone) { EXPECT_EQ(SplitAtCommas(""), Words()); }

}  // namespace
}  // namespace cairnfs
