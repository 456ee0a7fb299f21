// ClusterLocks of several hosts over one store.
#include "base/clock.h"
#include "locks_fixture.h"

namespace cairnfs::coherence {
namespace {

TEST_F(LocksTest, HoldAcrossHosts) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive, 10, 19)), Outcome::kGranted);
  EXPECT_EQ(Try(1, Posix(1, kShared, 0, 10)), Outcome::kWouldBlock);
  EXPECT_EQ(Try(1, Posix(1, kExclusive, 20, 29)), Outcome::kGranted);
  EXPECT_EQ(Try(2, Flock(5, kExclusive)), Outcome::kGranted);  // another kind
  EXPECT_EQ(Try(0, Flock(5, kShared)), Outcome::kWouldBlock);
  Unlock(2, Flock(5, kExclusive));
  EXPECT_EQ(Try(0, Flock(5, kShared)), Outcome::kGranted);
  EXPECT_EQ(Try(2, Flock(6, kShared)), Outcome::kGranted);

  auto holder = Test(0, Posix(2, kShared, 12, 100));
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->start, 10U);
  EXPECT_EQ(holder->last, 19U);
  EXPECT_EQ(holder->type, kExclusive);
  EXPECT_EQ(holder->pid, 1U);
  holder = Test(0, Posix(2, kShared, 20, 100));
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->pid, 0U);  // of another host
  Unlock(0, Posix(1, kExclusive, 10, 14));
  EXPECT_EQ(Test(2, Posix(1, kShared, 0, 14)), std::nullopt);
  EXPECT_EQ(Try(1, Posix(1, kShared, 0, 14)), Outcome::kGranted);
}

TEST_F(LocksTest, ALockAndItsReleaseAreOneRoundTripEach) {
  const size_t commits = hosts_[0].store->commits(), reads = hosts_[0].store->reads();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
    Unlock(0, Posix(1, kExclusive));
  }
  EXPECT_EQ(hosts_[0].store->commits() - commits, 20U);
  EXPECT_EQ(hosts_[0].store->reads() - reads, 0U);
  EXPECT_TRUE(Stored().empty());
  // A process without locks closes the file.
  std::promise<void> told;
  hosts_[0].locks->ReleaseOwner(kFile, 77, [&](const Result<void>&) { told.set_value(); });
  told.get_future().get();
  hosts_[0].locks->ReleaseHandle(kFile, 77);
  EXPECT_EQ(hosts_[0].store->commits() - commits, 20U);
}

TEST_F(LocksTest, WaitsInOrderOverHosts) {
  EXPECT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  std::vector<Wait> waits;
  for (int i = 0; i < 6; ++i) {
    waits.push_back(Lock(i % 3, Flock(10 + i, kExclusive)));
    AwaitWaiting(i + 1);
  }
  EXPECT_FALSE(waits[0].IsOver(kWhile));
  const size_t commits = hosts_[1].store->commits() + hosts_[2].store->commits();
  Unlock(0, Flock(1, kExclusive));
  for (int i = 0; i < 6; ++i) {
    ExpectGranted(waits[i]);
    for (int later = i + 1; later < 6; ++later) EXPECT_FALSE(waits[later].IsOver({}));
    Unlock(i % 3, Flock(10 + i, kExclusive));
  }
  // Only whose turn it was tried: one transaction for its lock, and one to free it.
  EXPECT_EQ(hosts_[1].store->commits() + hosts_[2].store->commits() - commits, 8U);
  EXPECT_TRUE(Stored().empty());
}

TEST_F(LocksTest, ReadersComeInTogether) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  Wait one = Lock(1, Posix(1, kShared)), two = Lock(2, Posix(1, kShared));
  AwaitWaiting(2);
  Unlock(0, Posix(1, kExclusive));
  ExpectGranted(one);
  ExpectGranted(two);
}

TEST_F(LocksTest, AnInterruptedWaitLeavesNothing) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  Wait wait = Lock(1, Posix(1, kExclusive));
  AwaitWaiting(1);
  hosts_[1].locks->Cancel(kFile, wait.ticket);
  EXPECT_EQ(*wait.outcome.get(), Outcome::kInterrupted);
  EXPECT_TRUE(Stored().waiting.empty());
  hosts_[1].locks->Cancel(kFile, wait.ticket);  // over: without effect
  Unlock(0, Posix(1, kExclusive));
  EXPECT_TRUE(Stored().empty());
  EXPECT_EQ(Try(2, Posix(1, kExclusive)), Outcome::kGranted);
}

TEST_F(LocksTest, AnInterruptThatMeetsTheGrantEndsInOneOfThem) {
  int granted = 0, interrupted = 0;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
    Wait wait = Lock(1, Posix(1, kExclusive));
    if (i % 2 == 0) AwaitWaiting(1);
    std::thread canceller([&] { hosts_[1].locks->Cancel(kFile, wait.ticket); });
    Unlock(0, Posix(1, kExclusive));
    canceller.join();
    const Result<Outcome> outcome = wait.outcome.get();
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    if (*outcome == Outcome::kGranted) {
      ++granted;
      ASSERT_EQ(Try(2, Posix(1, kExclusive)), Outcome::kWouldBlock);
      Unlock(1, Posix(1, kExclusive));
    } else {
      ++interrupted;
    }
    ASSERT_TRUE(Stored().empty());
  }
  EXPECT_EQ(granted + interrupted, 100);
}

TEST_F(LocksTest, TheEndOfASessionFreesItsLocks) {
  EXPECT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  Wait dead = Lock(1, Flock(1, kExclusive));
  AwaitWaiting(1);
  Wait wait = Lock(2, Flock(1, kExclusive));
  AwaitWaiting(2);
  EXPECT_FALSE(wait.IsOver(kWhile));
  EndSession(1);  // it waits first, and must not get it
  EndSession(0);
  ExpectGranted(wait);
  const Records stored = Stored();
  ASSERT_EQ(stored.held.size(), 1U);
  EXPECT_EQ(stored.held[0].owner.node, hosts_[2].membership->self());
}

TEST_F(LocksTest, LocksOfADeadSessionDoNotBlockATry) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  EndSession(0);
  const auto deadline = Clock::Now() + kSoon;  // until the others' views tell
  while (Try(1, Posix(1, kExclusive)) != Outcome::kGranted) {
    ASSERT_LT(Clock::Now(), deadline);
    Clock::SleepFor(milliseconds(1));
  }
}

TEST_F(LocksTest, RecordsOfADeadSessionGoThoughNobodyAsks) {
  for (uint64_t i = 0; i < 20; ++i) {
    Request request = Flock(1, kExclusive);
    request.inode = InodeId{200 + i};
    EXPECT_EQ(Try(2, request), Outcome::kGranted);
  }
  EndSession(2);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(Stored(InodeId{200 + i}).empty());
}

TEST_F(LocksTest, AHostThatLostItsSessionHoldsNothing) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(1, Posix(9, kExclusive, 5, 6)), Outcome::kWouldBlock);
  Wait wait = Lock(1, Posix(1, kExclusive));
  AwaitWaiting(1);
  EndSession(1);
  const Result<Outcome> refused = TryResult(1, Posix(2, kShared, 0, 0));
  EXPECT_FALSE(refused.ok() && *refused == Outcome::kGranted);
  LearnOfTheEndAndRejoin(1);
  const Result<Outcome> ended = wait.outcome.get();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code, ErrorCode::kStale);
  // In its new session it is like any other host.
  Wait again = Lock(1, Posix(1, kExclusive));
  Unlock(0, Posix(1, kExclusive));
  ExpectGranted(again);
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kWouldBlock);
}

TEST_F(LocksTest, OwnLocksOfAnEarlierSessionDoNotCount) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  EndSession(0);
  LearnOfTheEndAndRejoin(0);
  EXPECT_EQ(Try(0, Posix(2, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Stored().held.size(), 1U);
}

TEST_F(LocksTest, ClosingFreesWhatWasLocked) {
  Request two_handles = Posix(1, kExclusive, 0, 9);
  EXPECT_EQ(Try(0, two_handles), Outcome::kGranted);
  two_handles.handle = 50;
  two_handles.start = 20;
  two_handles.last = 29;
  EXPECT_EQ(Try(0, two_handles), Outcome::kGranted);
  EXPECT_EQ(Try(0, Flock(50, kExclusive)), Outcome::kGranted);
  // An OFD lock goes with its open file, and nothing else does.
  hosts_[0].locks->ReleaseHandle(kFile, 50);
  EXPECT_EQ(Try(0, Flock(51, kExclusive)), Outcome::kGranted);  // after the release, though nobody waited for it
  EXPECT_EQ(Try(1, Posix(1, kExclusive, 20, 29)), Outcome::kGranted);
  EXPECT_EQ(Try(1, Posix(1, kExclusive, 0, 9)), Outcome::kWouldBlock);
  std::promise<void> told;
  hosts_[0].locks->ReleaseOwner(kFile, 1, [&](const Result<void>& status) {
    EXPECT_TRUE(status.ok());
    told.set_value();
  });
  told.get_future().get();
  EXPECT_EQ(Try(1, Posix(1, kExclusive, 0, 9)), Outcome::kGranted);
}

TEST_F(LocksTest, AFailedConversionOfAFlockLosesIt) {
  EXPECT_EQ(Try(0, Flock(1, kShared)), Outcome::kGranted);
  EXPECT_EQ(Try(1, Flock(1, kShared)), Outcome::kGranted);
  EXPECT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kWouldBlock);
  EXPECT_EQ(Try(1, Flock(1, kExclusive)), Outcome::kGranted);  // alone by now
}

TEST_F(LocksTest, DeadlocksOnOneHostAreRefused) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive, 0, 0)), Outcome::kGranted);
  EXPECT_EQ(Try(0, Posix(2, kExclusive, 1, 1)), Outcome::kGranted);
  EXPECT_EQ(Try(0, Posix(3, kExclusive, 2, 2)), Outcome::kGranted);
  Wait one = Lock(0, Posix(1, kExclusive, 1, 1));
  Wait two = Lock(0, Posix(2, kExclusive, 2, 2));
  AwaitWaiting(2);
  Wait three = Lock(0, Posix(3, kExclusive, 0, 0));
  EXPECT_EQ(*three.outcome.get(), Outcome::kDeadlock);
  Unlock(0, Posix(3, kExclusive, 2, 2));
  ExpectGranted(two);
  Unlock(0, Posix(2, kExclusive));
  ExpectGranted(one);
}

TEST_F(LocksTest, OneRangeAloneIsNoDeadlock) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  Wait one, two, three;
  AllAtOnce(0, [&] {
    two = Lock(0, Posix(2, kExclusive));
    three = Lock(0, Posix(3, kExclusive));  // meets 1, and then waits for 2
    StartUnlock(0, Posix(1, kExclusive), [&] {
      StartUnlock(0, Posix(2, kExclusive));
      one = Lock(0, Posix(1, kExclusive));  // meets 3
    });
  });
  ExpectGranted(two);
  ExpectGranted(three);
  AllAtOnce(0, [&] {
    StartUnlock(0, Posix(3, kExclusive));
    three = Lock(0, Posix(3, kExclusive));  // meets 1, which waited for 3 until then
  });
  ExpectGranted(one);
  Unlock(0, Posix(1, kExclusive));
  ExpectGranted(three);
}

TEST_F(LocksTest, DeadlocksAreThoseOfTheHoldersAfterAHandOver) {
  auto other_file = [](uint64_t owner) {
    Request request = Posix(owner, kExclusive);
    request.inode = InodeId{101};
    return request;
  };
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(0, other_file(3)), Outcome::kGranted);
  Wait two, three;
  AllAtOnce(0, [&] {
    two = Lock(0, Posix(2, kExclusive));
    three = Lock(0, Posix(3, kExclusive));
    StartUnlock(0, Posix(1, kExclusive));
  });
  ExpectGranted(two);
  // 3 waits for 2, and for 1 no more.
  Wait one = Lock(0, other_file(1));
  Wait refused = Lock(0, other_file(2));
  ASSERT_TRUE(refused.IsOver(kSoon));
  EXPECT_EQ(*refused.outcome.get(), Outcome::kDeadlock);
  Unlock(0, Posix(2, kExclusive));
  ExpectGranted(three);
  Unlock(0, other_file(3));
  ExpectGranted(one);
}

TEST_F(LocksTest, TheEndOfTheMountEndsWaits) {
  EXPECT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  Wait wait = Lock(1, Posix(1, kExclusive));
  AwaitWaiting(1);
  hosts_[1].locks->EndWaits();
  EXPECT_EQ(*wait.outcome.get(), Outcome::kInterrupted);
  Wait later = Lock(1, Posix(2, kExclusive));
  EXPECT_EQ(*later.outcome.get(), Outcome::kInterrupted);
}

TEST_F(LocksTest, WhatACloseFreesIsAwaitedUntilItIsReleased) {
  ASSERT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  ClusterLocks& locks = *hosts_[0].locks;
  EXPECT_FALSE(locks.AwaitsRelease(Flock(2, kExclusive))) << "nobody closed it";
  locks.NoteClosed(kFile, 2);
  EXPECT_FALSE(locks.AwaitsRelease(Flock(2, kExclusive))) << "another file was closed";
  locks.NoteClosed(kFile, 1);
  EXPECT_FALSE(locks.AwaitsRelease(Flock(1, kExclusive))) << "its own lock";
  EXPECT_TRUE(locks.AwaitsRelease(Flock(2, kExclusive)));
  EXPECT_FALSE(hosts_[1].locks->AwaitsRelease(Flock(2, kExclusive))) << "another host";
  EXPECT_TRUE(Eventually([&] { return !locks.AwaitsRelease(Flock(2, kExclusive)); })) << "it has more descriptors";
  locks.NoteClosed(kFile, 1);
  locks.ReleaseHandle(kFile, 1);
  EXPECT_FALSE(locks.AwaitsRelease(Flock(2, kExclusive)));
  EXPECT_EQ(Try(0, Flock(2, kExclusive)), Outcome::kGranted);
}

// Files are closed then.
TEST_F(LocksTest, LocksAreFreedAfterTheEndOfWaitsToo) {
  ASSERT_EQ(Try(0, Flock(1, kShared)), Outcome::kGranted);
  ASSERT_EQ(Try(1, Flock(2, kShared)), Outcome::kGranted);
  hosts_[0].locks->EndWaits();
  Unlock(0, Flock(1, kShared));
  EXPECT_EQ(Stored().held.size(), 1U);
}

// Threads on three hosts take turns in a critical section; some give up waiting.
class Contest {
 public:
  explicit Contest(int rounds) : rounds_(rounds) {}

  void Run(ClusterLocks& locks, const Request& request, uint64_t seed) {
    testing::Random random(seed);
    for (int i = 0; i < rounds_; ++i) {
      if (!Acquire(locks, request, random)) continue;
      EXPECT_EQ(inside_.fetch_add(1), 0);
      ++turns_;
      if (random.OneIn(4)) std::this_thread::yield();
      EXPECT_EQ(inside_.fetch_sub(1), 1);
      std::promise<void> told;
      locks.Unlock(request, [&](const Result<void>& status) {
        EXPECT_TRUE(status.ok()) << status.error().message;
        told.set_value();
      });
      told.get_future().get();
    }
  }
  int turns() const { return turns_; }

 private:
  static bool Acquire(ClusterLocks& locks, const Request& request, testing::Random& random) {
    std::promise<Result<Outcome>> told;
    auto outcome = told.get_future();
    auto done = [&](Result<Outcome> answer) { told.set_value(std::move(answer)); };
    if (random.OneIn(4)) {
      locks.TryLock(request, done);
    } else {
      const auto ticket = locks.Lock(request, done);
      if (random.OneIn(4)) {
        outcome.wait_for(std::chrono::microseconds(random.Below(500)));
        locks.Cancel(kFile, ticket);
      }
    }
    const Result<Outcome> answer = outcome.get();
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    return answer.ok() && *answer == Outcome::kGranted;
  }

  const int rounds_;
  std::atomic<int> inside_{0}, turns_{0};
};

TEST_F(LocksTest, NoLockIsEverHeldByTwo) {
  Contest contest(150);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] { contest.Run(*hosts_[i % 3].locks, Posix(i + 1, kExclusive), i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(contest.turns(), 100);
  EXPECT_TRUE(Stored().empty());
}

TEST_F(LocksTest, LostAnswersChangeNothing) {
  for (int i = 0; i < 3; ++i) hosts_[i].store->LoseAnswers(15, i);
  Contest contest(12);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] { contest.Run(*hosts_[i % 3].locks, Flock(i + 1, kExclusive), i); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(contest.turns(), 10);
  for (Host& host : hosts_) host.store->RunLate();
  EXPECT_TRUE(Stored().empty());
}

TEST_F(LocksTest, ACommitThatComesLateFindsTheDoorShut) {
  hosts_[0].store->DelayNextCommit();
  EXPECT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  Unlock(0, Flock(1, kExclusive));
  // The record is absent again, as it was when the delayed one was sent.
  hosts_[0].store->RunLate();
  EXPECT_TRUE(Stored().empty());
}

// Who held the lock last is the quickest to ask again, and does not get it before who waits.
TEST_F(LocksTest, WhoAsksOverAndOverKeepsNobodyOut) {
  std::atomic<bool> ends{false};
  std::atomic<int> turns{0};
  std::vector<std::thread> threads;
  for (uint64_t owner : {1, 2}) {
    threads.emplace_back([&, owner] {
      for (; !ends; ++turns) {
        Wait wait = Lock(0, Posix(owner, kExclusive));
        ExpectGranted(wait);
        Unlock(0, Posix(owner, kExclusive));
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    Wait wait = Lock(1, Posix(1, kExclusive));
    AwaitRecord(1);
    const int before = turns;
    ExpectGranted(wait);
    // Those that were granted before it began to wait are still to end.
    EXPECT_LE(turns - before, 4);
    Unlock(1, Posix(1, kExclusive));
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

// Who waits is told by the watch: it asks the store for nothing before its turn.
TEST_F(LocksTest, AHandOverCostsWhoWaitsOneTransaction) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
    Wait wait = Lock(1, Posix(1, kExclusive));
    AwaitWaiting(1);
    const size_t commits = hosts_[1].store->commits(), reads = hosts_[1].store->reads();
    Unlock(0, Posix(1, kExclusive));
    ExpectGranted(wait);
    EXPECT_EQ(hosts_[1].store->commits() - commits, 1U);
    EXPECT_EQ(hosts_[1].store->reads() - reads, 0U);
    Unlock(1, Posix(1, kExclusive));
  }
}

}  // namespace
}  // namespace cairnfs::coherence
