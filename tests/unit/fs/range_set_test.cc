#include "fs/range_set.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace cairnfs::fs {
namespace {

// Against a bit for each byte.
TEST(RangeSet, IsASetOfBytes) {
  constexpr uint64_t kBytes = 300;
  std::mt19937_64 random(5);
  RangeSet set;
  std::vector<bool> model(kBytes, false);
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t begin = random() % kBytes, end = std::min(kBytes, begin + random() % 40);
    const bool add = random() % 2 == 0;
    if (add) {
      set.Add(begin, end);
    } else {
      set.Remove(begin, end);
    }
    for (uint64_t i = begin; i < end; ++i) model[i] = add;
    std::vector<bool> seen(kBytes, true);
    uint64_t last = 0;
    const uint64_t from = random() % kBytes, to = std::min(kBytes, from + random() % 100);
    set.ForEachGap(from, to, [&](uint64_t gap_begin, uint64_t gap_end) {
      ASSERT_LT(gap_begin, gap_end);
      ASSERT_TRUE(gap_begin > last || (last == 0 && gap_begin >= from)) << "gaps touch or go back";
      ASSERT_LE(gap_end, to);
      for (uint64_t i = gap_begin; i < gap_end; ++i) seen[i] = false;
      last = gap_end;
    });
    bool touched = false;
    for (uint64_t i = from; i < to; ++i) {
      ASSERT_EQ(seen[i], model[i]) << "byte " << i << " at step " << step;
      touched = touched || model[i];
    }
    ASSERT_EQ(set.Touches(from, to), touched) << "at step " << step;
  }
}

TEST(RangeSet, ForgetsTheLowestPastItsBound) {
  RangeSet set;
  for (uint64_t i = 0; i <= RangeSet::kRangesMax; ++i) set.Add(10 * i, 10 * i + 1);
  int gaps = 0;
  set.ForEachGap(0, 1, [&](uint64_t, uint64_t) { gaps++; });
  EXPECT_EQ(gaps, 1);
  set.ForEachGap(10, 11, [&](uint64_t, uint64_t) { gaps++; });
  EXPECT_EQ(gaps, 1);
}

}  // namespace
}  // namespace cairnfs::fs
