// The algebra of locked ranges against a model of single bytes, and the bytes of the record.
#include "coherence/lock_table.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "../../support/random.h"

namespace cairnfs::coherence {
namespace {

using cairnfs::testing::Random;

cluster::NodeId Node(int number) {
  cluster::NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

LockOwner Owner(int node, uint64_t number, LockKind kind = LockKind::kRecord) {
  return {{Node(node), static_cast<uint64_t>(node) * 100}, kind, number};
}

FileLock Exclusive(const LockOwner& owner, uint64_t start = 0, uint64_t last = kLockOffsetMax) {
  return {owner, LockType::kExclusive, start, last, 1, 1};
}

FileLock Shared(const LockOwner& owner, uint64_t start = 0, uint64_t last = kLockOffsetMax) {
  return {owner, LockType::kShared, start, last, 1, 1};
}

std::string Hex(std::string_view bytes) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (char c : bytes) {
    out.push_back(digits[static_cast<uint8_t>(c) >> 4]);
    out.push_back(digits[static_cast<uint8_t>(c) & 15]);
  }
  return out;
}

// --- the model ---

constexpr uint64_t kBytes = 24;  // the last one stands for all from there on

uint64_t LastOf(uint64_t byte) { return byte == kBytes - 1 ? kLockOffsetMax : byte; }

struct Held {
  LockType type;
  uint64_t handle;
  bool operator==(const Held&) const = default;
};

class Model {
 public:
  bool Conflicts(const FileLock& wanted) const {
    for (const auto& [owner, bytes] : owners_) {
      if (owner == wanted.owner || owner.kind != wanted.owner.kind) continue;
      for (uint64_t byte = 0; byte < kBytes; ++byte) {
        if (!bytes[byte] || byte < wanted.start || byte > wanted.last) continue;
        if (bytes[byte]->type == LockType::kExclusive || wanted.type == LockType::kExclusive) return true;
      }
    }
    return false;
  }
  bool Covers(const FileLock& wanted) const {
    auto found = owners_.find(wanted.owner);
    for (uint64_t byte = wanted.start; byte < kBytes && byte <= wanted.last; ++byte) {
      if (found == owners_.end() || !found->second[byte]) return false;
      if (wanted.type == LockType::kExclusive && found->second[byte]->type == LockType::kShared) return false;
    }
    return true;
  }
  void Set(const LockOwner& owner, uint64_t start, uint64_t last, std::optional<Held> held) {
    for (uint64_t byte = start; byte < kBytes && byte <= last; ++byte) owners_[owner][byte] = held;
  }
  void UnsetHandle(const LockSession& session, uint64_t handle) {
    for (auto& [owner, bytes] : owners_) {
      for (auto& byte : bytes) {
        if (owner.session == session && byte && byte->handle == handle) byte.reset();
      }
    }
  }
  // What a table with the same locks and no needless pieces holds.
  std::vector<FileLock> Locks() const {
    std::vector<FileLock> locks;
    for (const auto& [owner, bytes] : owners_) {
      for (uint64_t byte = 0; byte < kBytes; ++byte) {
        if (!bytes[byte]) continue;
        if (byte > 0 && bytes[byte - 1] == bytes[byte]) {
          locks.back().last = LastOf(byte);
        } else {
          locks.push_back({owner, bytes[byte]->type, byte, LastOf(byte), bytes[byte]->handle, 1});
        }
      }
    }
    return locks;
  }

 private:
  std::map<LockOwner, std::array<std::optional<Held>, kBytes>> owners_;
};

TEST(LockTable, DoesWhatAModelOfSingleBytesDoes) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LockTable table;
    Model model;
    for (int i = 0; i < 500; ++i) {
      LockOwner owner = Owner(static_cast<int>(random.Below(2)), random.Below(3));
      if (random.OneIn(4)) owner.kind = LockKind::kFlock;
      const uint64_t start = random.Below(kBytes);
      const uint64_t last = LastOf(random.Between(start, kBytes - 1));
      const auto type = random.OneIn(2) ? LockType::kShared : LockType::kExclusive;
      const FileLock lock{owner, type, start, last, random.Below(2), 1};
      ASSERT_EQ(table.Covers(lock), model.Covers(lock));
      if (random.OneIn(10)) {
        table.UnsetHandle(owner.session, lock.handle);
        model.UnsetHandle(owner.session, lock.handle);
      } else if (random.OneIn(3)) {
        table.Unset(owner, start, last);
        model.Set(owner, start, last, std::nullopt);
      } else {
        ASSERT_EQ(table.Conflict(lock) != nullptr, model.Conflicts(lock));
        ASSERT_EQ(table.Conflicts(lock).empty(), !model.Conflicts(lock));
        if (table.Conflict(lock) != nullptr) continue;
        ASSERT_TRUE(table.Set(lock).ok());
        model.Set(owner, start, last, Held{type, lock.handle});
        ASSERT_TRUE(table.Covers(lock));
      }
      ASSERT_EQ(table.held(), model.Locks());
      const Result<LockTable> decoded = LockTable::Decode(table.Encode());
      ASSERT_TRUE(decoded.ok());
      ASSERT_EQ(*decoded, table);
    }
  }
}

TEST(LockTable, AConflictIsToldByTheLeastStart) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(2, 1), 50, 59)).ok());
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1), 70, 79)).ok());
  ASSERT_TRUE(table.Set(Shared(Owner(3, 1), 20, 29)).ok());
  EXPECT_EQ(table.Conflict(Shared(Owner(4, 1)))->start, 50U);
  EXPECT_EQ(table.Conflict(Exclusive(Owner(4, 1)))->start, 20U);
  EXPECT_EQ(table.Conflict(Exclusive(Owner(4, 1), 60, 69)), nullptr);
}

TEST(LockTable, WaitersAreServedInOrderAndDoNotBlockEachOther) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1), 0, 9)).ok());
  ASSERT_TRUE(table.AddWaiting({7, Shared(Owner(2, 1), 0, 9)}).ok());
  ASSERT_TRUE(table.AddWaiting({8, Exclusive(Owner(2, 2), 0, 4)}).ok());
  ASSERT_TRUE(table.AddWaiting({9, Shared(Owner(3, 1), 5, 9)}).ok());
  EXPECT_TRUE(table.GrantWaiting().empty());
  table.Unset(Owner(1, 1), 0, 9);
  const std::vector<WaitingLock> granted = table.GrantWaiting();
  ASSERT_EQ(granted.size(), 2U);
  EXPECT_EQ(granted[0].ticket, 7U);
  EXPECT_EQ(granted[1].ticket, 9U);
  EXPECT_EQ(table.FindWaiting(Owner(2, 0).session, 7), nullptr);
  EXPECT_NE(table.FindWaiting(Owner(2, 0).session, 8), nullptr);
  EXPECT_EQ(table.FindWaiting(Owner(3, 0).session, 8), nullptr);  // tickets are of a session
  table.RemoveWaiting(Owner(2, 0).session, 8);
  EXPECT_TRUE(table.waiting().empty());
}

TEST(LockTable, AnExclusiveLockThatBecomesSharedLetsOthersIn) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1))).ok());
  ASSERT_TRUE(table.AddWaiting({1, Shared(Owner(2, 1))}).ok());
  ASSERT_TRUE(table.AddWaiting({2, Shared(Owner(1, 1))}).ok());  // the holder's own: nothing is in its way
  EXPECT_EQ(table.GrantWaiting().size(), 2U);
  EXPECT_TRUE(table.waiting().empty());
}

TEST(LockTable, ASessionGoesWithAllItHas) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1), 0, 9)).ok());
  ASSERT_TRUE(table.Set(Exclusive(Owner(2, 1), 10, 19)).ok());
  ASSERT_TRUE(table.AddWaiting({1, Shared(Owner(1, 2), 10, 19)}).ok());
  ASSERT_TRUE(table.AddWaiting({2, Shared(Owner(3, 1), 0, 9)}).ok());
  EXPECT_EQ(table.Sessions().size(), 3U);
  table.RemoveSession(Owner(1, 0).session);
  EXPECT_EQ(table.held().size(), 1U);
  EXPECT_EQ(table.waiting().size(), 1U);
  LockSession later = Owner(2, 0).session;
  later.revision++;
  table.RemoveSession(later);  // another session of the same node
  EXPECT_EQ(table.held().size(), 1U);
}

TEST(LockTable, IsBounded) {
  LockTable table;
  uint64_t at = 0;
  while (table.Set(Exclusive(Owner(1, 1), at, at)).ok()) at += 2;
  EXPECT_GE(table.held().size() + 2, LockTable::kLocksMax);
  EXPECT_LE(table.held().size(), LockTable::kLocksMax);
  EXPECT_LT(table.Encode().size(), 400'000U);
  EXPECT_EQ(table.Set(Exclusive(Owner(1, 1), at, at)).error().code, ErrorCode::kTooLarge);
  table.Unset(Owner(1, 1), 0, 100);  // freeing always works
  EXPECT_TRUE(table.Set(Exclusive(Owner(1, 1), at, at)).ok());
}

TEST(LockTable, AFullOneLetsInWhoWaits) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1))).ok());
  uint64_t ticket = 0;
  while (table.AddWaiting({ticket + 1, Exclusive(Owner(2, ticket + 1))}).ok()) ++ticket;
  ASSERT_EQ(table.waiting().size() + 1, LockTable::kLocksMax);
  table.Unset(Owner(1, 1), 0, kLockOffsetMax);
  const std::vector<WaitingLock> granted = table.GrantWaiting();
  ASSERT_EQ(granted.size(), 1U);
  EXPECT_EQ(granted[0].ticket, 1U);
  EXPECT_EQ(table.held().size(), 1U);
  EXPECT_EQ(table.waiting().front().ticket, 2U);
}

TEST(LockTable, WhoFindsNoRoomKeepsItsPlace) {
  LockTable table;
  ASSERT_TRUE(table.Set(Exclusive(Owner(1, 1))).ok());
  ASSERT_TRUE(table.AddWaiting({1, Exclusive(Owner(2, 1), 0, 0)}).ok());
  ASSERT_TRUE(table.AddWaiting({2, Exclusive(Owner(2, 2), 5, 5)}).ok());
  for (uint64_t i = 3; table.AddWaiting({i, Exclusive(Owner(2, i), 0, 0)}).ok();) ++i;
  table.Unset(Owner(1, 1), 5, 5);  // makes two of one
  EXPECT_TRUE(table.GrantWaiting().empty());
  EXPECT_EQ(table.waiting()[1].ticket, 2U);
  table.RemoveWaiting(Owner(2, 0).session, 3);
  table.RemoveWaiting(Owner(2, 0).session, 4);
  const std::vector<WaitingLock> granted = table.GrantWaiting();
  ASSERT_EQ(granted.size(), 1U);
  EXPECT_EQ(granted[0].ticket, 2U);
}

LockTable Sample() {
  LockTable table;
  EXPECT_TRUE(table.Set({Owner(1, 0x1122), LockType::kExclusive, 5, kLockOffsetMax, 3, 300}).ok());
  EXPECT_TRUE(table.Set({Owner(2, 4, LockKind::kFlock), LockType::kShared, 0, kLockOffsetMax, 4, 1}).ok());
  EXPECT_TRUE(table.AddWaiting({9, {Owner(2, 5), LockType::kShared, 0, 6, 4, 1}}).ok());
  return table;
}

TEST(LockTable, BytesOfTheRecord) {
  EXPECT_EQ(Hex(Sample().Encode()),
            "01"  // version
            "02"  // sessions
            "01000000000000000000000000000000"
            "6400000000000000"  //
            "02000000000000000000000000000000"
            "c800000000000000"  //
            "02"                // held
            "00"
            "01"
            "2211000000000000"
            "03"
            "ac02"
            "05"
            "ffffffffffffffff7f"  //
            "01"
            "02"
            "0400000000000000"
            "04"
            "01"
            "00"
            "ffffffffffffffff7f"  //
            "01"                  // waiting
            "0900000000000000"
            "01"
            "00"
            "0500000000000000"
            "04"
            "01"
            "00"
            "06");
  EXPECT_EQ(Hex(LocksKey(InodeId{258})), "4b0000000000000102");
  EXPECT_EQ(InodeOfLocksKey(LocksKey(InodeId{258})), InodeId{258});
  EXPECT_EQ(InodeOfLocksKey("K"), std::nullopt);
  EXPECT_EQ(InodeOfLocksKey("I12345678"), std::nullopt);
}

TEST(LockTable, BrokenRecordsAreRefused) {
  const std::string good = Sample().Encode();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(LockTable::Decode(std::string_view(good).substr(0, size)).ok()) << size;
  }
  EXPECT_EQ(LockTable::Decode(good + "x").error().code, ErrorCode::kCorrupt);
  std::string newer = good;
  newer[0] = 2;
  EXPECT_EQ(LockTable::Decode(newer).error().code, ErrorCode::kNotSupported);
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = good;
      broken[at] = static_cast<char>(broken[at] ^ (1 << bit));
      Result<LockTable> table = LockTable::Decode(broken);  // must not crash, nor what follows
      if (!table.ok()) continue;
      (void)table->GrantWaiting();
      (void)table->Encode();
    }
  }
}

}  // namespace
}  // namespace cairnfs::coherence
