#include "progress.h"

#include <gtest/gtest.h>

namespace cairnfs::tools {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(ShareText, GuessesTheRestByTheRateSoFar) {
  EXPECT_EQ(ShareText(kGiB, 4 * kGiB, seconds(60)), "1.0 GiB of 4.0 GiB (25 %), about 3 min left");
  EXPECT_EQ(ShareText(3 * kGiB, 4 * kGiB, seconds(60)), "3.0 GiB of 4.0 GiB (75 %), about 20 s left");
  EXPECT_EQ(ShareText(kGiB, 100 * kGiB, seconds(3600)), "1.0 GiB of 100.0 GiB (1 %), about 99.0 h left");
}

TEST(ShareText, GuessesNothingFromTooLittle) {
  EXPECT_EQ(ShareText(0, 4 * kGiB, seconds(60)), "0 B of 4.0 GiB (0 %)");
  EXPECT_EQ(ShareText(kGiB / 100, 4 * kGiB, seconds(60)), "10.2 MiB of 4.0 GiB (0 %)");
  EXPECT_EQ(ShareText(kGiB, 4 * kGiB, milliseconds(999)), "1.0 GiB of 4.0 GiB (25 %)");
}

TEST(ShareText, GuessesByTheRateOfTheLastSecondsWhereItIsKnown) {
  EXPECT_EQ(ShareText(0, 4 * kGiB, seconds(0), 0.5 * kGiB), "0 B of 4.0 GiB (0 %), about 8 s left");
  EXPECT_EQ(ShareText(2 * kGiB, 4 * kGiB, seconds(60), 0.5 * kGiB), "2.0 GiB of 4.0 GiB (50 %), about 4 s left");
  EXPECT_EQ(ShareText(4 * kGiB, 4 * kGiB, seconds(0), 0.5 * kGiB), "all of 4.0 GiB");
}

TEST(LeftText, GuessesWhileSomethingIsLeft) {
  EXPECT_EQ(LeftText(1000, 4000, seconds(60)), ", about 3 min left");
  EXPECT_EQ(LeftText(10, 4000, seconds(60)), "");
  EXPECT_EQ(LeftText(4000, 4000, seconds(60)), "");
  EXPECT_EQ(LeftText(0, 0, seconds(60)), "");
}

TEST(ShareText, NeverSaysMoreThanAll) {
  EXPECT_EQ(ShareText(4 * kGiB - 1, 4 * kGiB, milliseconds(5)), "4.0 GiB of 4.0 GiB (99 %)");
  EXPECT_EQ(ShareText(5 * kGiB, 4 * kGiB, seconds(60)), "all of 4.0 GiB");
  EXPECT_EQ(ShareText(0, 0, seconds(60)), "nothing");
}

}  // namespace
}  // namespace cairnfs::tools
