#include "fuse/interrupt.h"

#include <gtest/gtest.h>

namespace cairnfs::fuse {
namespace {

TEST(InterruptTest, SeesAKillThatIsPendingForTheThreadOrTheProcess) {
  EXPECT_TRUE(ShowsPendingKill("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
  EXPECT_TRUE(ShowsPendingKill("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n"));
}

TEST(InterruptTest, OtherSignalsAreNoKill) {
  // SIGALRM and SIGTERM are pending, SIGKILL is in no mask that counts.
  EXPECT_FALSE(
      ShowsPendingKill("Name:\tx\nSigPnd:\t0000000000006000\nShdPnd:\t0000000000002000\n"
                       "SigBlk:\tffffffffffffffff\nSigCgt:\t0000000000000100\n"));
}

TEST(InterruptTest, UnreadableTextIsNoKill) {
  EXPECT_FALSE(ShowsPendingKill(""));
  EXPECT_FALSE(ShowsPendingKill("\nSigPnd:"));
  EXPECT_FALSE(ShowsPendingKill("\nSigPnd:\tzzz\n"));
}

}  // namespace
}  // namespace cairnfs::fuse
