#include <gtest/gtest.h>
#include <sys/mount.h>

#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

constexpr unsigned long kSafe = MS_NOSUID | MS_NODEV;

TEST(Remount, KeepsTheFlagsThatAreNotNamed) {
  const MountState now{false, kSafe | MS_RELATIME};
  EXPECT_EQ(*StateAfter(now, {}, false), now);
  EXPECT_EQ(*StateAfter(now, {}, true), (MountState{true, kSafe | MS_RELATIME | MS_RDONLY}));
  EXPECT_EQ(*StateAfter(*StateAfter(now, {}, true), {"defaults", "x-mine"}, false), now);
  EXPECT_EQ(*StateAfter(now, {"suid", "noexec"}, false), (MountState{false, MS_NODEV | MS_RELATIME | MS_NOEXEC}));
}

TEST(Remount, OneWordOnTimesOfAccessTakesTheOthersPlace) {
  const MountState now{false, MS_RELATIME};
  const MountState without = *StateAfter(now, {"noatime"}, false);
  EXPECT_EQ(without, (MountState{false, MS_NOATIME}));
  EXPECT_EQ(*StateAfter(without, {"relatime"}, false), now);
  EXPECT_EQ(*StateAfter(without, {"strictatime"}, false), (MountState{false, MS_STRICTATIME}));
}

TEST(Remount, IsOfOurMountsOnly) {
  EXPECT_EQ(StateOfMount("/proc").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RemountAt("/", {true, 0}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(StateAfter({}, {"pool_size"}, false).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairnfs::fuse
