#include "coherence/lock_holders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "../../support/random.h"

namespace cairnfs::coherence {
namespace {

constexpr uint64_t kOwners = 6;

FileLock LockOf(uint64_t owner, LockKind kind, uint64_t byte) {
  return {{{}, kind, owner}, LockType::kShared, byte, byte, owner, 1};
}

// Locks come and go at random in some files, as a look through all of them says.
TEST(LockHolders, AreThoseWhoHoldARecordLockInAnyFile) {
  testing::Random random(1);
  LockHolders holders;
  std::array<LockTable, 4> files;
  std::array<std::vector<LockOwner>, 4> counted;
  for (int step = 0; step < 20'000; ++step) {
    const size_t file = random.Below(files.size());
    const LockKind kind = random.OneIn(3) ? LockKind::kFlock : LockKind::kRecord;
    FileLock lock = LockOf(random.Below(kOwners), kind, random.Below(8));
    if (kind == LockKind::kFlock) lock.start = 0, lock.last = kLockOffsetMax;
    switch (random.Below(4)) {
      case 0: ASSERT_TRUE(files[file].Set(lock).ok()); break;
      case 1: files[file].Unset(lock.owner, 0, random.Below(8)); break;
      case 2: files[file].UnsetHandle(lock.handle); break;
      default:
        if (random.OneIn(10)) files[file] = LockTable();
    }
    holders.Count(files[file].held(), counted[file]);
    for (uint64_t owner = 0; owner < kOwners; ++owner) {
      const LockOwner asked = LockOf(owner, LockKind::kRecord, 0).owner;
      const bool holds = std::ranges::any_of(files, [&](const LockTable& table) {
        return std::ranges::any_of(table.held(), [&](const FileLock& held) { return held.owner == asked; });
      });
      ASSERT_EQ(holders.Contains(asked), holds) << step;
      ASSERT_FALSE(holders.Contains(LockOf(owner, LockKind::kFlock, 0).owner));
    }
  }
}

}  // namespace
}  // namespace cairnfs::coherence
