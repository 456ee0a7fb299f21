// FindLockCycle: cycles of owners, out of the records of all hosts.
#include "coherence/lock_cycle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

namespace cairnfs::coherence {
namespace {

cluster::NodeId Machine(int number) {
  cluster::NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

FileLock Range(int node, uint64_t owner, uint64_t start, uint64_t last, LockType type = LockType::kExclusive) {
  return {{Machine(node), LockKind::kRecord, owner}, type, start, last, 1, 1};
}
FileLock Whole(int node, uint64_t owner) { return Range(node, owner, 0, kLockOffsetMax); }

class LockCycleTest : public ::testing::Test {
 protected:
  void Hold(uint64_t inode, const FileLock& lock) {
    HostLocks& record = records_[{inode, lock.owner.node}];
    ASSERT_TRUE(record.held.Set(lock).ok());
  }
  void Wait(uint64_t inode, const FileLock& lock) { records_[{inode, lock.owner.node}].waiting.push_back({1, lock}); }
  // Every key's revision is its place.
  std::vector<kv::KvEntry> Entries() const {
    std::vector<kv::KvEntry> entries;
    for (const auto& [place, locks] : records_) {
      entries.push_back({LocksKey(InodeId{place.first}, place.second), locks.Encode(), entries.size() + 1});
    }
    return entries;
  }
  LockCycle Find(uint64_t inode, const FileLock& wanted) const {
    return FindLockCycle(Entries(), InodeId{inode}, wanted);
  }
  // The inode and the node of each record, in order.
  using Places = std::vector<std::pair<uint64_t, cluster::NodeId>>;
  Places PlacesOf(const LockCycle& cycle) const {
    Places places;
    const std::vector<kv::KvEntry> entries = Entries();
    for (const LockCycleRecord& record : cycle) {
      const auto place = PlaceOfLocksKey(record.key);
      EXPECT_TRUE(place.has_value());
      places.emplace_back(place->inode.value, place->node);
      EXPECT_EQ(entries.at(record.revision - 1).key, record.key);
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  std::map<std::pair<uint64_t, cluster::NodeId>, HostLocks> records_;
};

TEST_F(LockCycleTest, TwoHostsThatWaitForEachOther) {
  Hold(7, Whole(1, 5));
  Hold(8, Whole(2, 5));  // the same number on another host is another owner
  Hold(9, Whole(3, 5));
  Wait(8, Whole(1, 5));
  EXPECT_TRUE(Find(8, Whole(1, 5)).empty());
  Wait(7, Whole(2, 5));
  const Places all = {{7, Machine(1)}, {7, Machine(2)}, {8, Machine(1)}, {8, Machine(2)}};
  EXPECT_EQ(PlacesOf(Find(7, Whole(2, 5))), all);
  EXPECT_EQ(PlacesOf(Find(8, Whole(1, 5))), all);
  // Who waits for one of a cycle is in none.
  Wait(7, Whole(3, 5));
  EXPECT_TRUE(Find(7, Whole(3, 5)).empty());
}

TEST_F(LockCycleTest, TwoReadersWhoWantToWriteTheSameBytes) {
  Hold(7, Range(1, 1, 0, 9, LockType::kShared));
  Hold(7, Range(2, 1, 0, 9, LockType::kShared));
  Wait(7, Range(1, 1, 5, 5));
  EXPECT_TRUE(Find(7, Range(1, 1, 5, 5)).empty());
  Wait(7, Range(2, 1, 9, 9));
  EXPECT_EQ(Find(7, Range(2, 1, 9, 9)).size(), 2U);
}

TEST_F(LockCycleTest, OneOfSeveralHoldersIsEnough) {
  Hold(7, Range(1, 1, 0, 0, LockType::kShared));
  Hold(7, Range(2, 1, 0, 0, LockType::kShared));
  Hold(8, Whole(3, 1));
  Wait(8, Whole(2, 1));
  Wait(7, Range(3, 1, 0, 0));
  EXPECT_EQ(Find(7, Range(3, 1, 0, 0)).size(), 4U);
}

TEST_F(LockCycleTest, WhatDoesNotConflictIsNoEdge) {
  Hold(7, Range(1, 1, 0, 9));
  Hold(8, Whole(2, 1));
  Wait(8, Whole(1, 1));
  Wait(7, Range(2, 1, 10, 19));
  EXPECT_TRUE(Find(7, Range(2, 1, 10, 19)).empty());
  FileLock flock = Whole(2, 1);
  flock.owner.kind = LockKind::kFlock;
  Wait(7, flock);
  EXPECT_TRUE(Find(7, flock).empty());
}

// Another thread's wait was looked at when it began.
TEST_F(LockCycleTest, AnotherWaitOfTheSameOwnerDoesNotCount) {
  Hold(7, Whole(1, 1));
  Hold(8, Whole(2, 1));
  Hold(9, Whole(3, 1));
  Wait(8, Whole(1, 1));
  Wait(7, Whole(2, 1));
  Wait(9, Whole(1, 1));
  EXPECT_TRUE(Find(9, Whole(1, 1)).empty());
}

TEST_F(LockCycleTest, TheShortestIsFound) {
  Hold(7, Range(1, 1, 0, 0, LockType::kShared));
  Hold(7, Range(2, 1, 0, 0, LockType::kShared));
  Hold(8, Whole(3, 1));
  Hold(9, Whole(2, 1));
  Wait(9, Whole(1, 1));
  Wait(8, Whole(2, 1));
  Wait(7, Range(3, 1, 0, 0));  // for 2, and for 1, which waits for 2
  EXPECT_EQ(Find(7, Range(3, 1, 0, 0)).size(), 4U);
}

TEST_F(LockCycleTest, RecordsThatDoNotDecodeCountAsEmpty) {
  Hold(7, Whole(1, 1));
  Hold(8, Whole(2, 1));
  Wait(8, Whole(1, 1));
  Wait(7, Whole(2, 1));
  std::vector<kv::KvEntry> entries = Entries();
  entries.insert(entries.begin(), {"K short", "", 9});
  EXPECT_EQ(FindLockCycle(entries, InodeId{7}, Whole(2, 1)).size(), 4U);
  for (size_t broken = 1; broken < entries.size(); ++broken) {
    std::vector<kv::KvEntry> all = entries;
    all[broken].value = "\x09";
    EXPECT_TRUE(FindLockCycle(all, InodeId{7}, Whole(2, 1)).empty()) << broken;
  }
}

// A transaction has room for so many compares.
TEST_F(LockCycleTest, AsManyRecordsAreComparedAsThereIsRoomFor) {
  const auto ring = [this](int owners) {
    records_.clear();
    for (int i = 0; i < owners; ++i) {
      Hold(100 + i, Whole(i, 1));
      Wait(100 + (i + 1) % owners, Whole(i, 1));
    }
    return Find(101, Whole(0, 1)).size();
  };
  EXPECT_EQ(ring(kLockCycleRecordsMax / 2), kLockCycleRecordsMax);
  EXPECT_EQ(ring(kLockCycleRecordsMax / 2 + 1), 0U);
}

}  // namespace
}  // namespace cairnfs::coherence
