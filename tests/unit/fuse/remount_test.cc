#include <gtest/gtest.h>
#include <sys/mount.h>

#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

constexpr unsigned long kSafe = MS_NOSUID | MS_NODEV;

TEST(Remount, KeepsTheFlagsThatAreNotNamed) {
  const MountState now{false, kSafe | MS_RELATIME};
  EXPECT_EQ(*StateAfter(now, {.words = {}}), now);
  EXPECT_EQ(*StateAfter(now, {.words = {}, .read_only = true}), (MountState{true, kSafe | MS_RELATIME | MS_RDONLY}));
  EXPECT_EQ(*StateAfter(*StateAfter(now, {.words = {}, .read_only = true}), {.words = {"defaults", "x-mine"}}), now);
  EXPECT_EQ(*StateAfter(now, {.words = {"suid", "noexec"}}), (MountState{false, MS_NODEV | MS_RELATIME | MS_NOEXEC}));
}

TEST(Remount, OneWordOnTimesOfAccessTakesTheOthersPlace) {
  const MountState now{false, MS_RELATIME};
  const MountState without = *StateAfter(now, {.words = {"noatime"}});
  EXPECT_EQ(without, (MountState{false, MS_NOATIME}));
  EXPECT_EQ(*StateAfter(without, {.words = {"relatime"}}), now);
  EXPECT_EQ(*StateAfter(without, {.words = {"strictatime"}}), (MountState{false, MS_STRICTATIME}));
}

TEST(Remount, IsOfOurMountsOnly) {
  EXPECT_EQ(StateOfMount("/proc").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RemountAt("/", {true, 0}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(StateAfter({}, {.words = {"pool_size"}}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairnfs::fuse
