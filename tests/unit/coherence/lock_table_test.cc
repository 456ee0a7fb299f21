// The algebra of locked ranges against a model of single bytes, who lets whom pass, and the bytes of the record.
#include "coherence/lock_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "../../support/random.h"
#include "base/hex.h"

namespace cairnfs::coherence {
namespace {

using cairnfs::testing::Random;

cluster::NodeId Member(int number) {
  cluster::NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

LockOwner Owner(int node, uint64_t number, LockKind kind = LockKind::kRecord) { return {Member(node), kind, number}; }

FileLock Exclusive(const LockOwner& owner, uint64_t start = 0, uint64_t last = kLockOffsetMax) {
  return {owner, LockType::kExclusive, start, last, 1, 1};
}

FileLock Shared(const LockOwner& owner, uint64_t start = 0, uint64_t last = kLockOffsetMax) {
  return {owner, LockType::kShared, start, last, 1, 1};
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
  void Set(const LockOwner& owner, uint64_t start, uint64_t last, std::optional<Held> held) {
    for (uint64_t byte = start; byte < kBytes && byte <= last; ++byte) owners_[owner][byte] = held;
  }
  void UnsetHandle(uint64_t handle) {
    for (auto& [owner, bytes] : owners_) {
      for (auto& byte : bytes) {
        if (byte && byte->handle == handle) byte.reset();
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
      LockOwner owner = Owner(1, random.Below(6));
      if (random.OneIn(4)) owner.kind = LockKind::kFlock;
      const uint64_t start = random.Below(kBytes);
      const uint64_t last = LastOf(random.Between(start, kBytes - 1));
      const auto type = random.OneIn(2) ? LockType::kShared : LockType::kExclusive;
      const FileLock lock{owner, type, start, last, random.Below(2), 1};
      if (random.OneIn(10)) {
        const bool had_any = std::any_of(table.held().begin(), table.held().end(),
                                         [&](const FileLock& held) { return held.handle == lock.handle; });
        ASSERT_EQ(table.UnsetHandle(lock.handle), had_any);
        model.UnsetHandle(lock.handle);
      } else if (random.OneIn(3)) {
        table.Unset(owner, start, last);
        model.Set(owner, start, last, std::nullopt);
      } else {
        ASSERT_EQ(table.Conflict(lock) != nullptr, model.Conflicts(lock));
        if (table.Conflict(lock) != nullptr) continue;
        ASSERT_TRUE(table.Set(lock).ok());
        model.Set(owner, start, last, Held{type, lock.handle});
      }
      ASSERT_EQ(table.held(), model.Locks());
      const Result<HostLocks> decoded = HostLocks::Decode(Member(1), HostLocks{table, {}}.Encode());
      ASSERT_TRUE(decoded.ok());
      ASSERT_EQ(decoded->held, table);
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

TEST(LockTable, IsBounded) {
  LockTable table;
  uint64_t at = 0;
  while (table.Set(Exclusive(Owner(1, 1), at, at)).ok()) at += 2;
  EXPECT_GE(table.held().size() + 2, LockTable::kLocksMax);
  EXPECT_LE(table.held().size(), LockTable::kLocksMax);
  EXPECT_LT((HostLocks{table, {}}.Encode().size()), 400'000U);
  EXPECT_EQ(table.Set(Exclusive(Owner(1, 1), at, at)).error().code, ErrorCode::kTooLarge);
  table.Unset(Owner(1, 1), 0, 100);  // freeing always works
  EXPECT_TRUE(table.Set(Exclusive(Owner(1, 1), at, at)).ok());
}

// --- several hosts ---

kv::KvEntry Entry(int node, const HostLocks& locks, uint64_t revision) {
  return {LocksKey(InodeId{7}, Member(node)), locks.Encode(), revision};
}

HostLocks RecordOf(const FileLock& lock) {
  HostLocks locks;
  EXPECT_TRUE(locks.held.Set(lock).ok());
  return locks;
}

TEST(KnownLocks, FollowWhatAWatchTells) {
  KnownLocks known(Member(1));
  EXPECT_EQ(known.as_of(), 0U);
  const FileLock lock = Exclusive(Owner(2, 1), 10, 19);
  // The own record is what this host has written; what it holds, it knows.
  ASSERT_TRUE(known.Load({{Entry(1, RecordOf(lock), 3), Entry(2, RecordOf(lock), 4)}, false, 5}).ok());
  EXPECT_EQ(known.as_of(), 5U);
  EXPECT_EQ(*known.Conflict(Shared(Owner(1, 1), 0, 10)), lock);
  EXPECT_EQ(known.Conflict(Shared(Owner(1, 1), 0, 9)), nullptr);

  const std::string key = LocksKey(InodeId{7}, Member(2));
  ASSERT_TRUE(known.Apply({{key, std::nullopt, 4}}, 4).ok());  // from before what was read
  EXPECT_NE(known.Conflict(Shared(Owner(1, 1))), nullptr);
  ASSERT_TRUE(known.Apply({{key, std::nullopt, 6}}, 7).ok());
  EXPECT_EQ(known.Conflict(Shared(Owner(1, 1))), nullptr);
  EXPECT_EQ(known.as_of(), 7U);
  EXPECT_EQ(known.Load({{Entry(2, RecordOf(lock), 4)}, false, 5}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(known.Conflict(Shared(Owner(1, 1))), nullptr);
  EXPECT_FALSE(known.Apply({{key, "?", 8}}, 8).ok());
}

TEST(KnownLocks, AreWholeOrNotKnown) {
  KnownLocks known(Member(1));
  const std::string key = LocksKey(InodeId{7}, Member(2));
  const HostLocks locks = RecordOf(Exclusive(Owner(2, 1)));
  ASSERT_TRUE(known.Load({{Entry(2, locks, 4)}, false, 5}).ok());
  known.ForgetOthers();
  EXPECT_EQ(known.as_of(), 0U);
  ASSERT_TRUE(known.Apply({{key, locks.Encode(), 8}}, 8).ok());  // there may be others
  EXPECT_EQ(known.as_of(), 0U);
  EXPECT_EQ(known.Load({{Entry(2, locks, 4)}, false, 7}).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(known.Load({{Entry(2, locks, 8)}, false, 8}).ok());
  EXPECT_NE(known.Conflict(Shared(Owner(1, 1))), nullptr);
}

TEST(KnownLocks, WhoWaitsForLongerGoesFirst) {
  KnownLocks known(Member(2));
  HostLocks other = RecordOf(Shared(Owner(3, 1), 0, 9));
  other.waiting.push_back({20, Exclusive(Owner(3, 2), 10, 19)});
  ASSERT_TRUE(known.Load({{Entry(3, other, 21)}, false, 30}).ok());
  EXPECT_TRUE(known.MustLetPass(Shared(Owner(2, 1), 0, 10), UINT64_MAX));
  EXPECT_TRUE(known.MustLetPass(Shared(Owner(2, 1), 0, 10), 21));
  EXPECT_FALSE(known.MustLetPass(Shared(Owner(2, 1), 0, 10), 20));  // of two equals the first node
  EXPECT_FALSE(known.MustLetPass(Shared(Owner(2, 1), 0, 10), 19));
  EXPECT_FALSE(known.MustLetPass(Shared(Owner(2, 1), 0, 9), UINT64_MAX));  // not in its way
  // One that could not have its lock anyway is not waited for: a process may share what it waits for.
  ASSERT_TRUE(known.own.Set(Shared(Owner(2, 5), 12, 12)).ok());
  EXPECT_FALSE(known.MustLetPass(Shared(Owner(2, 1), 0, 10), UINT64_MAX));
}

// --- the record ---

HostLocks Sample() {
  HostLocks locks;
  EXPECT_TRUE(locks.held.Set({Owner(1, 0x1122), LockType::kExclusive, 5, kLockOffsetMax, 3, 300}).ok());
  EXPECT_TRUE(locks.held.Set({Owner(1, 4, LockKind::kFlock), LockType::kShared, 0, kLockOffsetMax, 4, 1}).ok());
  locks.waiting.push_back({9, {Owner(1, 5), LockType::kShared, 0, 6, 4, 1}});
  return locks;
}

TEST(LockTable, BytesOfTheRecord) {
  EXPECT_EQ(ToHex(Sample().Encode()),
            "02"  // version
            "02"  // held
            "01"
            "2211000000000000"
            "03"
            "ac02"
            "05"
            "ffffffffffffffff7f"  //
            "02"
            "0400000000000000"
            "04"
            "01"
            "00"
            "ffffffffffffffff7f"  //
            "01"                  // waiting
            "0900000000000000"
            "00"
            "0500000000000000"
            "04"
            "01"
            "00"
            "06");
  EXPECT_EQ(ToHex(LocksBegin(InodeId{258})), "4b0000000000000102");
  EXPECT_EQ(ToHex(LocksKey(InodeId{258}, Member(1))), "4b000000000000010201000000000000000000000000000000");
}

TEST(LockTable, BrokenRecordsAreRefused) {
  const std::string good = Sample().Encode();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(HostLocks::Decode(Member(1), std::string_view(good).substr(0, size)).ok()) << size;
  }
  EXPECT_EQ(HostLocks::Decode(Member(1), good + "x").error().code, ErrorCode::kCorrupt);
  std::string newer = good;
  newer[0] = 3;
  EXPECT_EQ(HostLocks::Decode(Member(1), newer).error().code, ErrorCode::kNotSupported);
  const FileLock two = Exclusive(Owner(1, 2), 5, 9), overlapping = Exclusive(Owner(1, 2), 9, 10);
  EXPECT_TRUE(LockTable::FromOrdered({Exclusive(Owner(1, 1)), two}).has_value());
  EXPECT_FALSE(LockTable::FromOrdered({two, Exclusive(Owner(1, 1))}).has_value());
  EXPECT_FALSE(LockTable::FromOrdered({two, overlapping}).has_value());
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string broken = good;
      broken[at] = static_cast<char>(broken[at] ^ (1 << bit));
      Result<HostLocks> locks = HostLocks::Decode(Member(1), broken);  // must not crash, nor what follows
      if (locks.ok()) (void)locks->Encode();
    }
  }
}

}  // namespace
}  // namespace cairnfs::coherence
