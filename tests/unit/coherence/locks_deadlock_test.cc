// Deadlocks of owners on several hosts: one wait of each cycle is refused, and no other.
#include <array>
#include <map>
#include <optional>
#include <set>

#include "locks_fixture.h"

namespace cairnfs::coherence {
namespace {

class LocksDeadlockTest : public LocksTest {
 protected:
  static Request In(uint64_t inode, uint64_t owner, LockType type = kExclusive) {
    Request request = Posix(owner, type);
    request.inode = InodeId{inode};
    return request;
  }
  // Until the host waits in the inode, as everybody sees.
  void AwaitWaitIn(uint64_t inode, size_t count = 1) {
    ASSERT_TRUE(Eventually([&] { return Stored(InodeId{inode}).waiting.size() == count; }));
  }
  template <size_t count>
  static int FirstToEnd(std::array<Wait, count>& waits) {
    int first = -1;
    EXPECT_TRUE(Eventually([&] {
      const auto found = std::find_if(waits.begin(), waits.end(), [](Wait& wait) { return wait.IsOver({}); });
      if (found != waits.end()) first = static_cast<int>(found - waits.begin());
      return first >= 0;
    }));
    return first;
  }
  static void ExpectOutcome(Wait& wait, Outcome expected) {
    ASSERT_TRUE(wait.IsOver(kSoon));
    const Result<Outcome> outcome = wait.outcome.get();
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_EQ(*outcome, expected);
  }
};

// One of them is refused: who begins last, or another one that looks after that. The wait of who is refused is over.
TEST_F(LocksDeadlockTest, AreFoundOverHostsAndFiles) {
  std::array<Wait, 3> waits;
  for (int host = 0; host < 3; ++host) ASSERT_EQ(Try(host, In(10 + host, 1)), Outcome::kGranted);
  for (int host = 0; host < 3; ++host) waits[host] = Lock(host, In(10 + (host + 1) % 3, 1));
  const int refused = FirstToEnd(waits);
  ExpectOutcome(waits[refused], Outcome::kDeadlock);
  EXPECT_TRUE(Stored(InodeId{10U + (refused + 1) % 3}).waiting.empty());
  for (int host : {(refused + 2) % 3, (refused + 1) % 3}) {
    EXPECT_FALSE(waits[host].IsOver(kWhile));
    Unlock((host + 1) % 3, In(10 + (host + 1) % 3, 1));
    ExpectOutcome(waits[host], Outcome::kGranted);
    Unlock(host, In(10 + (host + 1) % 3, 1));
  }
}

TEST_F(LocksDeadlockTest, TwoReadersWhoWantToWrite) {
  std::array<Wait, 2> waits;
  for (int host : {0, 1}) ASSERT_EQ(Try(host, In(10, 1, LockType::kShared)), Outcome::kGranted);
  for (int host : {0, 1}) waits[host] = Lock(host, In(10, 1));
  const int refused = FirstToEnd(waits);
  ExpectOutcome(waits[refused], Outcome::kDeadlock);
  EXPECT_FALSE(waits[1 - refused].IsOver(kWhile));
  Unlock(refused, In(10, 1));
  ExpectOutcome(waits[1 - refused], Outcome::kGranted);
}

// An owner that holds nothing else is waited for by nobody: it looks for nothing.
TEST_F(LocksDeadlockTest, WhoHoldsNothingElseLooksForNone) {
  ASSERT_EQ(Try(0, In(10, 1)), Outcome::kGranted);
  const size_t reads = hosts_[1].store->reads();
  Wait wait = Lock(1, In(10, 1));
  AwaitWaitIn(10);
  Unlock(0, In(10, 1));
  ExpectOutcome(wait, Outcome::kGranted);
  EXPECT_EQ(hosts_[1].store->reads() - reads, 1U);  // who is in the way
}

// A record of the cycle changes each time before the wait is refused. Each look reads the locks of all files, so it
// comes later each time.
TEST_F(LocksDeadlockTest, ALookInVainIsFollowedByARest) {
  const auto range = [](uint64_t owner, uint64_t byte) {
    Request request = In(10, owner);
    request.start = request.last = byte;
    return request;
  };
  ASSERT_EQ(Try(1, In(11, 1)), Outcome::kGranted);
  Wait first = Lock(0, In(11, 1));  // by one that holds nothing yet, and so does not look
  AwaitWaitIn(11);
  ASSERT_EQ(Try(0, range(1, 0)), Outcome::kGranted);
  const std::string in_cycle = LocksKey(InodeId{10}, hosts_[0].membership->self());
  std::vector<Clock::time_point> refusals;
  hosts_[1].store->on_commit = [&](const kv::Transaction& transaction) {
    const auto& compares = transaction.compares;
    if (std::ranges::none_of(compares, [&](const kv::Compare& each) { return each.key == in_cycle; })) return;
    refusals.push_back(Clock::Now());
    if (refusals.size() > 3) return;
    EXPECT_EQ(Try(0, range(2, refusals.size())), Outcome::kGranted);
  };
  Wait second = Lock(1, range(1, 0));
  ExpectOutcome(second, Outcome::kDeadlock);
  ASSERT_EQ(refusals.size(), 4U);
  for (size_t i = 1; i < refusals.size(); ++i) {
    EXPECT_GE(refusals[i] - refusals[i - 1], milliseconds(10) * (1 << (i - 1))) << i;
  }
  Unlock(1, In(11, 1));
  ExpectOutcome(first, Outcome::kGranted);
}

// The other host's lease ends, and with it the cycle.
TEST_F(LocksDeadlockTest, AHostThatDiedIsInNoCycle) {
  ASSERT_EQ(Try(0, In(10, 1)), Outcome::kGranted);
  ASSERT_EQ(Try(1, In(11, 1)), Outcome::kGranted);
  Wait first = Lock(0, In(11, 1));
  AwaitWaitIn(11);
  EndSession(0);
  Wait second = Lock(1, In(10, 1));
  ExpectOutcome(second, Outcome::kGranted);
}

TEST_F(LocksDeadlockTest, AFlockIsWaitedForForEver) {
  const auto flock = [](uint64_t inode, uint64_t handle) {
    Request request = Flock(handle, kExclusive);
    request.inode = InodeId{inode};
    return request;
  };
  ASSERT_EQ(Try(0, flock(10, 1)), Outcome::kGranted);
  ASSERT_EQ(Try(1, flock(11, 1)), Outcome::kGranted);
  Wait first = Lock(0, flock(11, 1)), second = Lock(1, flock(10, 1));
  AwaitWaitIn(10);
  AwaitWaitIn(11);
  EXPECT_FALSE(first.IsOver(kWhile) || second.IsOver({}));
  hosts_[1].locks->Cancel(InodeId{10}, second.ticket);
  ExpectOutcome(second, Outcome::kInterrupted);
}

// What the owners hold and wait for, as their threads know it. A lock is held here for no longer than it is in truth,
// and a wait stands here for at least as long as its host may answer it.
class Ledger {
 public:
  using Owner = uint64_t;

  void NoteWaits(Owner owner, uint64_t inode, LockType type) {
    std::lock_guard lock(mutex_);
    waits_[owner] = {inode, type};
  }
  void NoteAnswer(Owner owner, Outcome outcome) {
    std::lock_guard lock(mutex_);
    const auto [inode, type] = waits_.at(owner);
    if (outcome == Outcome::kDeadlock) {
      const bool was_excused = excused_.erase(owner) > 0;
      EXPECT_TRUE(IsInCycle(owner) || was_excused) << "owner " << owner << " is refused, and in no cycle";
      for (const auto& [other, wait] : waits_) {
        if (other != owner && IsInCycle(other) && IsInCycle(owner, other)) excused_.insert(other);
      }
      ++deadlocks_;
    } else {
      ASSERT_EQ(outcome, Outcome::kGranted);
      for (const auto& [other, locks] : held_) {
        const auto found = locks.find(inode);
        const bool is_shared = found != locks.end() && found->second == LockType::kShared;
        EXPECT_TRUE(other == owner || found == locks.end() || (is_shared && type == LockType::kShared));
      }
      held_[owner][inode] = type;
    }
    waits_.erase(owner);
    excused_.erase(owner);
  }
  void NoteFrees(Owner owner) {
    std::lock_guard lock(mutex_);
    held_.erase(owner);
  }
  int deadlocks() const { return deadlocks_; }

 private:
  bool IsInCycle(Owner start, std::optional<Owner> without = {}) const {
    std::set<Owner> seen;
    if (without) seen.insert(*without);
    std::vector<Owner> left{start};
    while (!left.empty()) {
      const Owner waiter = left.back();
      left.pop_back();
      const auto wait = waits_.find(waiter);
      if (wait == waits_.end()) continue;
      for (const auto& [holder, locks] : held_) {
        const auto found = locks.find(wait->second.first);
        if (holder == waiter || found == locks.end()) continue;
        if (found->second == LockType::kShared && wait->second.second == LockType::kShared) continue;
        if (holder == start) return true;
        if (seen.insert(holder).second) left.push_back(holder);
      }
    }
    return false;
  }

  std::mutex mutex_;
  std::map<Owner, std::map<uint64_t, LockType>> held_;
  std::map<Owner, std::pair<uint64_t, LockType>> waits_;
  // Whose refusal may be told after that of another one, who was in a cycle without it, and which broke its cycle.
  std::set<Owner> excused_;
  int deadlocks_ = 0;
};

// Takes locks in any order, each with a wait, and begins anew when one is refused.
class Dining {
 public:
  static constexpr uint64_t kFiles = 4;

  Dining(ClusterLocks& locks, Ledger& ledger, uint64_t owner) : locks_(locks), ledger_(ledger), owner_(owner) {}

  void Run(int rounds, uint64_t seed) {
    testing::Random random(seed);
    for (int round = 0; round < rounds; ++round) {
      std::set<uint64_t> taken;
      for (bool goes_on = true; goes_on && taken.size() < 3;) {
        const uint64_t inode = 200 + random.Below(kFiles);
        const LockType type = random.OneIn(3) ? LockType::kShared : kExclusive;
        // A shared lock that takes the place of an exclusive one frees: the ledger has none of that.
        if (taken.contains(inode) && type == LockType::kShared) continue;
        goes_on = Take(inode, type);
        taken.insert(inode);
      }
      ledger_.NoteFrees(owner_);
      for (const uint64_t inode : taken) Free(inode);
    }
  }

 private:
  Request Of(uint64_t inode, LockType type) const {
    return {InodeId{inode}, LockKind::kRecord, owner_, owner_, static_cast<uint32_t>(owner_), type, 0, kLockOffsetMax};
  }
  bool Take(uint64_t inode, LockType type) {
    std::promise<bool> told;
    ledger_.NoteWaits(owner_, inode, type);
    locks_.Lock(Of(inode, type), [&](const Result<Outcome>& outcome) {
      EXPECT_TRUE(outcome.ok());
      ledger_.NoteAnswer(owner_, outcome.ok() ? *outcome : Outcome::kInterrupted);
      told.set_value(outcome.ok() && *outcome == Outcome::kGranted);
    });
    auto granted = told.get_future();
    if (granted.wait_for(kSoon) == std::future_status::ready) return granted.get();
    ADD_FAILURE() << "owner " << owner_ << " waits for ever";
    std::abort();  // the other threads wait, too
  }
  void Free(uint64_t inode) {
    std::promise<void> told;
    locks_.Unlock(Of(inode, kExclusive), [&](const Result<void>& status) {
      EXPECT_TRUE(status.ok());
      told.set_value();
    });
    told.get_future().get();
  }

  ClusterLocks& locks_;
  Ledger& ledger_;
  const uint64_t owner_;
};

// Owners on three hosts take several locks in no order. Nobody waits for ever, and who is refused was in a cycle whose
// others still wait.
class LocksDeadlockContest : public LocksDeadlockTest {
 protected:
  int Contest(int rounds) {
    Ledger ledger;
    std::vector<std::thread> threads;
    for (uint64_t owner = 1; owner <= 6; ++owner) {
      threads.emplace_back([&, owner] { Dining(*hosts_[owner % 3].locks, ledger, owner).Run(rounds, owner); });
    }
    for (std::thread& thread : threads) thread.join();
    for (Host& host : hosts_) host.store->RunLate();
    for (uint64_t inode = 200; inode < 200 + Dining::kFiles; ++inode) EXPECT_TRUE(Stored(InodeId{inode}).empty());
    return ledger.deadlocks();
  }
};

TEST_F(LocksDeadlockContest, OneOfEachCycleIsRefused) { EXPECT_GT(Contest(60), 20); }

TEST_F(LocksDeadlockContest, LostAnswersRefuseNobodyElse) {
  for (int i = 0; i < 3; ++i) hosts_[i].store->LoseAnswers(10, i);
  EXPECT_GT(Contest(8), 2);
}

}  // namespace
}  // namespace cairnfs::coherence
