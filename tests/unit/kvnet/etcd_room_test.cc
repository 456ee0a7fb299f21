// Who may take room of an etcd that gets full, by what its members tell. In virtual time.
#include "kvnet/etcd_room.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace cairnfs::kvnet {
namespace {

using kv::NameChange;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr uint64_t kMib = 1 << 20, kQuota = 8192 * kMib, kKept = kQuota / 8;
constexpr uint32_t kUser = 4711;

// Of a member that has so much left of its quota beside what it uses, in a file no larger than that.
EtcdRoom::Space With(uint64_t left_bytes, const std::string& address = "a:1") {
  return {address, kQuota, kQuota - left_bytes, kQuota - left_bytes};
}

void Note(EtcdRoom& room, const std::vector<EtcdRoom::Space>& members) { room.Note(members, room.BeginLook()); }

bool LetsIn(EtcdRoom& room, NameChange change, uint32_t uid = kUser, uint64_t bytes = 1000) {
  const Status judged = room.Judge(change, uid, bytes);
  if (judged.ok()) return true;
  EXPECT_EQ(judged.error().code, ErrorCode::kNoSpace);
  return false;
}

TEST(EtcdRoom, LetsEverythingInWhileNothingIsKnownOrThereIsNoQuota) {
  EtcdRoom room;
  EXPECT_FALSE(room.IsKnown());
  EXPECT_TRUE(room.IsLookDue());
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, kUser, kQuota));
  Note(room, {});  // nobody answered
  EXPECT_FALSE(room.IsKnown());
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, kUser, kQuota));
  Note(room, {{"a:1", 0, kQuota, kQuota}});
  EXPECT_FALSE(room.IsKnown());
  EXPECT_FALSE(room.SlowsRemovals());
  EXPECT_FALSE(room.IsShort());
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, kUser, kQuota));
}

TEST(EtcdRoom, RefusesUsersThenRootThenAlterationsAndNeverRemovals) {
  EtcdRoom room;
  struct Row {
    uint64_t left;
    bool user, root, alters, slows;
  };
  for (const Row& row : {Row{kKept * 2, true, true, true, false}, Row{kKept * 5 / 4 + kMib, true, true, true, false},
                         Row{kKept * 5 / 4, false, true, true, false}, Row{kKept + kMib, false, true, true, false},
                         Row{kKept, false, false, true, false}, Row{kKept * 7 / 8, false, false, false, false},
                         Row{kKept * 3 / 4 - kMib, false, false, false, true}, Row{0, false, false, false, true}}) {
    Note(room, {With(row.left)});
    EXPECT_EQ(LetsIn(room, NameChange::kMakes), row.user) << row.left;
    EXPECT_EQ(LetsIn(room, NameChange::kMakes, 0), row.root) << row.left;
    EXPECT_EQ(LetsIn(room, NameChange::kMakes, geteuid()), row.root) << row.left;
    EXPECT_EQ(LetsIn(room, NameChange::kAlters), row.alters) << row.left;
    EXPECT_EQ(room.SlowsRemovals(), row.slows) << row.left;
    EXPECT_TRUE(LetsIn(room, NameChange::kRemoves));
    EXPECT_TRUE(LetsIn(room, NameChange::kShortens));
    EXPECT_EQ(room.BytesForUsers(0) > 0, row.user) << row.left;
  }
}

TEST(EtcdRoom, TheMemberWithTheLeastCounts) {
  EtcdRoom room;
  Note(room, {With(kQuota, "a:1"), With(kKept, "b:1"), With(kQuota / 2, "c:1")});
  const Status judged = room.Judge(NameChange::kMakes, 0, 0);
  ASSERT_FALSE(judged.ok());
  EXPECT_NE(judged.error().message.find("etcd at b:1 uses 7168 of 8192 MiB"), std::string::npos)
      << judged.error().message;
  Note(room, {});  // silence is no news
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0));
  Note(room, {With(kQuota, "a:1"), With(kQuota / 2, "c:1")});  // that member is away
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes));
}

// The file does not shrink: room in it counts until next to nothing is left behind it.
TEST(EtcdRoom, AFileNearTheQuotaRefusesWhateverIsFreeInIt) {
  EtcdRoom room;
  const uint64_t used = 100 * kMib;
  Note(room, {{"a:1", kQuota, kQuota - kKept / 4, used}});
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes));
  EXPECT_EQ(room.BytesForUsers(0), kQuota - used - kKept - kKept / 4);
  Note(room, {{"a:1", kQuota, kQuota - kKept / 8, used}});
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0));
  EXPECT_TRUE(LetsIn(room, NameChange::kAlters));
  EXPECT_EQ(room.BytesForUsers(0), 0u);
  EXPECT_TRUE(room.IsShort());
  Note(room, {{"a:1", kQuota, kQuota - kKept / 16, used}});
  EXPECT_FALSE(LetsIn(room, NameChange::kAlters));
  EXPECT_FALSE(room.SlowsRemovals());
}

TEST(EtcdRoom, WhatIsNotInTheFileYetCounts) {
  EtcdRoom room;
  Note(room, {With(kKept + 10 * kMib)});
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, 0, 9 * kMib));
  room.NoteLetIn(9 * kMib);
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0, 2 * kMib));
  // A look at once does not show it, and one that is later enough does.
  Note(room, {With(kKept + 10 * kMib)});
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0, 2 * kMib));
  Clock::SleepFor(milliseconds(1'100));
  const EtcdRoom::Look look = room.BeginLook();
  room.NoteLetIn(kMib);  // while it looks
  room.Note({With(kKept + 10 * kMib)}, look);
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0, 2 * kMib)) << "let in since the look that counts";
  Clock::SleepFor(milliseconds(1'100));
  Note(room, {With(kKept + 2 * kMib)});
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, 0, kMib / 2));
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0, 3 * kMib / 2));
}

// However many let in at once: each has to look again after a part of what is left.
TEST(EtcdRoom, HostsThatFillItAtOnceDoNotComeToTheQuota) {
  constexpr size_t kHosts = 64;
  constexpr uint64_t kBytes = 200'000;
  std::vector<std::unique_ptr<EtcdRoom>> rooms;
  for (size_t i = 0; i < kHosts; ++i) rooms.push_back(std::make_unique<EtcdRoom>());
  uint64_t left = kQuota;
  for (bool is_full = false; !is_full;) {
    is_full = true;
    // All look at the same moment, which is the worst.
    for (auto& room : rooms) Note(*room, {With(left)});
    uint64_t taken = 0;
    for (auto& room : rooms) {
      while (!room->IsLookDueFor(kBytes) && LetsIn(*room, NameChange::kMakes, 0, kBytes)) {
        room->NoteLetIn(kBytes);
        taken += kBytes;
        is_full = false;
      }
    }
    ASSERT_LT(taken, left);
    left -= taken;
  }
  EXPECT_GT(left, kKept / 2) << "nothing is left for removals";
}

TEST(EtcdRoom, LooksMoreOftenTheLessIsLeft) {
  EtcdRoom room;
  const auto due_after = [&](uint64_t left, milliseconds time) {
    Note(room, {With(left)});
    const auto until = Clock::Now() + time;
    Clock::SleepUntil(until - milliseconds(1));
    EXPECT_FALSE(room.IsLookDue()) << left;
    Clock::SleepUntil(until + milliseconds(1));
    EXPECT_TRUE(room.IsLookDue()) << left;
    Clock::SleepUntil(until + time);
    EXPECT_TRUE(room.IsLookDueFor(1)) << left << ": nobody else has looked";
  };
  Note(room, {With(kQuota)});
  Clock::SleepFor(seconds(11));
  EXPECT_FALSE(room.IsLookDueFor(1)) << "housekeeping looks, and no maker waits for it";
  due_after(kQuota, seconds(10));
  due_after(kQuota / 3, seconds(2));
  due_after(kKept, milliseconds(500));
  room.NoteLetIn(kKept);  // which may be counted twice: what is refused for it is so for a moment
  due_after(kKept * 2, milliseconds(500));
}

EtcdRoom::Space At(uint64_t used, uint64_t revision) { return {"a:1", kQuota, used, used, revision}; }

TEST(EtcdRoom, CompactsWhileShortAndNotFasterThanMembersCan) {
  EtcdRoom room;
  const uint64_t used = kQuota - kKept;
  Note(room, {At(used - kKept, 10'000)});
  EXPECT_EQ(room.CompactionDue(), std::nullopt);
  Note(room, {At(used, 10'000)});
  EXPECT_TRUE(room.IsShort());
  EXPECT_EQ(room.CompactionDue(), 10'000u);
  room.NoteCompacted(10'000, seconds(3));
  Note(room, {At(used, 20'000)});
  Clock::SleepFor(milliseconds(2'900));
  EXPECT_EQ(room.CompactionDue(), std::nullopt);
  Clock::SleepFor(milliseconds(200));
  EXPECT_EQ(room.CompactionDue(), 20'000u);
  room.NoteCompacted(20'000, std::nullopt);  // it takes long
  Note(room, {At(used, 30'000)});
  Clock::SleepFor(minutes(5));
  EXPECT_EQ(room.CompactionDue(), std::nullopt);
  Clock::SleepFor(minutes(3));
  EXPECT_EQ(room.CompactionDue(), 30'000u);
}

TEST(EtcdRoom, CompactsTheRestOfTheHistoryInTheEnd) {
  EtcdRoom room;
  Note(room, {At(kQuota - kKept, 10'000)});
  room.NoteCompacted(10'000, milliseconds(10));
  Note(room, {At(kQuota - kKept, 10'001)});
  Clock::SleepFor(minutes(15));  // a dump takes less
  EXPECT_EQ(room.CompactionDue(), std::nullopt);
  Clock::SleepFor(minutes(5));
  EXPECT_EQ(room.CompactionDue(), 10'001u);
  room.NoteCompacted(10'001, milliseconds(10));
  Clock::SleepFor(minutes(120));
  EXPECT_EQ(room.CompactionDue(), std::nullopt) << "nothing came since";
}

TEST(EtcdRoom, IsShortUntilThereIsClearlyRoomAgain) {
  EtcdRoom room;
  Note(room, {With(kKept * 3 / 2 - kMib)});
  EXPECT_TRUE(room.IsShort());
  Note(room, {With(kKept * 3 / 2 + kMib)});
  EXPECT_TRUE(room.IsShort());
  Note(room, {With(2 * kKept)});
  EXPECT_FALSE(room.IsShort());
}

// A small file can be written anew as a whole at once.
TEST(EtcdRoom, OfASmallQuotaThreeQuartersAreKept) {
  EtcdRoom room;
  Note(room, {{"a:1", 64 * kMib, kMib, kMib}});
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes));
  EXPECT_FALSE(room.IsShort());
  Note(room, {{"a:1", 64 * kMib, 5 * kMib, 5 * kMib}});
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes));
  EXPECT_TRUE(LetsIn(room, NameChange::kMakes, 0));
  EXPECT_TRUE(room.IsShort());
  Note(room, {{"a:1", 64 * kMib, 16 * kMib, 16 * kMib}});
  EXPECT_FALSE(LetsIn(room, NameChange::kMakes, 0));
  Note(room, {{"a:1", 2048 * kMib, 1500 * kMib, 1500 * kMib}});
  EXPECT_EQ(room.BytesForUsers(0), (548 - 480) * kMib);
}

TEST(EtcdRoom, ATransactionCostsWhatEtcdSaysAndItsSlot) {
  EXPECT_EQ(EtcdCostOf({}), 0u);
  kv::Transaction transaction;
  transaction.Put("key", std::string(1000, 'x')).Delete("another");
  EXPECT_GE(EtcdCostOf(transaction), 3 * 256 + 1010u);
}

}  // namespace
}  // namespace cairnfs::kvnet
