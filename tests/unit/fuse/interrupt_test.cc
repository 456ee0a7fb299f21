#include "fuse/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace cairnfs::fuse {
namespace {

TEST(InterruptTest, SeesAKillThatIsPendingForTheThreadOrTheProcess) {
  EXPECT_TRUE(ShowsPendingKill("Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
  EXPECT_TRUE(ShowsPendingKill("Name:\tx\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n"));
}

// Ten digits for each of the groups that the caller is in, and its signals stand behind them.
TEST(InterruptTest, ACallerInManyGroupsIsSeenToBeKilled) {
  std::string status = "Name:\tx\nGroups:\t";
  for (int i = 0; i < 20'000; ++i) status += std::to_string(1'234'500'000 + i) + " ";
  status += "\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
  char path[] = "/tmp/cairnfs-status-XXXXXX";
  const int fd = mkstemp(path);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(write(fd, status.data(), status.size()), static_cast<ssize_t>(status.size()));
  close(fd);
  const std::string read = ReadProcFile(path);
  unlink(path);
  EXPECT_EQ(read.size(), status.size());
  EXPECT_TRUE(ShowsPendingKill(read));
}

TEST(InterruptTest, OfAThreadThatIsGoneThereIsNothingToRead) {
  EXPECT_EQ(ReadProcFile("/proc/nobody/status"), "");
  EXPECT_FALSE(IsBeingKilled(getpid()));
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
