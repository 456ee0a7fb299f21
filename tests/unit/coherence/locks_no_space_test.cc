// ClusterLocks when the store has no room for a change: what frees is tried again, nothing else waits, and nobody is
// told that there is no lock where there may be one.
#include "base/clock.h"
#include "locks_fixture.h"

namespace cairnfs::coherence {
namespace {

class LocksNoSpaceTest : public LocksTest {
 protected:
  Wait StartTry(int host, const Request& request) {
    auto told = std::make_shared<std::promise<Result<Outcome>>>();
    Wait wait;
    wait.outcome = told->get_future();
    hosts_[host].locks->TryLock(request, [told](Result<Outcome> outcome) { told->set_value(std::move(outcome)); });
    return wait;
  }
  void ExpectError(Wait wait, ErrorCode code) {
    ASSERT_TRUE(wait.IsOver(kSoon));
    const Result<Outcome> outcome = wait.outcome.get();
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, code) << outcome.error().message;
  }
  // How an unlock is answered.
  ErrorCode UnlockRefused(int host, const Request& request) {
    auto told = std::make_shared<std::promise<Result<void>>>();
    auto status = told->get_future();
    hosts_[host].locks->Unlock(request, [told](Result<void> answer) { told->set_value(std::move(answer)); });
    if (!IsReadyWithin(status, kSoon)) return ErrorCode::kInterrupted;
    const Result<void> answer = status.get();
    return answer.ok() ? ErrorCode::kConflict : answer.error().code;
  }
  // Until the full store refused something to the host, after `before` times.
  void AwaitRefusal(int host, size_t before = 0) {
    ASSERT_TRUE(Eventually([&] { return hosts_[host].store->refusals() > before; }, kSoon));
  }
  void AwaitHeld(size_t count, InodeId inode = kFile) {
    ASSERT_TRUE(Eventually([&] { return Stored(inode).held.size() == count; }, kSoon));
  }
  // A try of host 0 for flock 1 that was sent, got no answer, and may not be sent again for want of room.
  Wait StartTryInDoubt() {
    hosts_[0].store->DelayNextCommit();
    hosts_[0].store->SetFull(true);
    Wait wait = StartTry(0, Flock(1, kExclusive));
    AwaitRefusal(0);
    return wait;
  }
};

TEST_F(LocksNoSpaceTest, AnOpenFileThatIsClosedIsUnlockedOnceThereIsRoom) {
  ASSERT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  Wait wait = Lock(1, Flock(1, kExclusive));
  AwaitWaiting(1);
  hosts_[0].store->SetFull(true);
  hosts_[0].locks->ReleaseHandle(kFile, 1);
  AwaitRefusal(0);
  // Others are told, and do not wait.
  ExpectError(StartTry(0, Flock(2, kExclusive)), ErrorCode::kNoSpace);
  ExpectError(Lock(0, Flock(2, kExclusive)), ErrorCode::kNoSpace);
  EXPECT_FALSE(wait.IsOver({}));
  hosts_[0].store->SetFull(false);
  ExpectGranted(wait);
}

TEST_F(LocksNoSpaceTest, WhatWasToBeUnlockedIsUnlockedOnceThereIsRoom) {
  constexpr uint64_t kFiles = 3;
  auto file = [](uint64_t number, Request request) {
    request.inode = InodeId{kFile.value + number};
    return request;
  };
  for (uint64_t i = 0; i < kFiles; ++i) {
    ASSERT_EQ(Try(0, file(i, Posix(1, kExclusive))), Outcome::kGranted);
    ASSERT_EQ(Try(0, file(i, Flock(7, kExclusive))), Outcome::kGranted);
  }
  hosts_[0].store->SetFull(true);
  for (uint64_t i = 0; i < kFiles; ++i) {
    EXPECT_EQ(UnlockRefused(0, file(i, Posix(1, kExclusive, 10, 19))), ErrorCode::kNoSpace);
    EXPECT_EQ(UnlockRefused(0, file(i, Posix(1, kExclusive, 20, 29))), ErrorCode::kNoSpace);
    EXPECT_EQ(UnlockRefused(0, file(i, Posix(1, kExclusive, 10, 19))), ErrorCode::kNoSpace);
  }
  // It goes on, though nobody asks.
  AwaitRefusal(0, hosts_[0].store->refusals());
  hosts_[0].store->SetFull(false);
  for (uint64_t i = 0; i < kFiles; ++i) {
    AwaitHeld(3, InodeId{kFile.value + i});
    EXPECT_EQ(Try(1, file(i, Posix(1, kExclusive, 10, 29))), Outcome::kGranted);
    EXPECT_EQ(Try(1, file(i, Posix(1, kExclusive, 9, 9))), Outcome::kWouldBlock);
    EXPECT_EQ(Try(1, file(i, Posix(1, kExclusive, 30, 30))), Outcome::kWouldBlock);
    EXPECT_EQ(Try(1, file(i, Flock(1, kShared))), Outcome::kWouldBlock);
  }
}

TEST_F(LocksNoSpaceTest, ALockComesAfterTheUnlockBeforeIt) {
  ASSERT_EQ(Try(0, Posix(1, kExclusive)), Outcome::kGranted);
  hosts_[0].store->SetFull(true);
  EXPECT_EQ(UnlockRefused(0, Posix(1, kExclusive)), ErrorCode::kNoSpace);
  hosts_[0].store->SetFull(false);
  EXPECT_EQ(Try(0, Posix(1, kShared, 5, 9)), Outcome::kGranted);
  const Records stored = Stored();
  ASSERT_EQ(stored.held.size(), 1U);
  EXPECT_EQ(stored.held[0].type, kShared);
  EXPECT_EQ(stored.held[0].last, 9U);
}

TEST_F(LocksNoSpaceTest, AnInterruptedWaitEndsOnceThereIsRoom) {
  ASSERT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
  Wait wait = Lock(1, Flock(1, kExclusive));
  AwaitWaiting(1);
  hosts_[1].store->SetFull(true);
  hosts_[1].locks->Cancel(kFile, wait.ticket);
  AwaitRefusal(1);
  hosts_[1].store->SetFull(false);
  ASSERT_TRUE(wait.IsOver(kSoon));
  EXPECT_EQ(*wait.outcome.get(), Outcome::kInterrupted);
  AwaitWaiting(0);
}

TEST_F(LocksNoSpaceTest, AWaitWhoseTurnFindsNoRoomGoesOn) {
  ASSERT_EQ(Try(2, Flock(1, kExclusive)), Outcome::kGranted);
  Wait wait = Lock(1, Flock(1, kExclusive));
  AwaitWaiting(1);
  hosts_[1].store->SetFull(true);
  EndSession(2);
  AwaitRefusal(1);
  EXPECT_FALSE(wait.IsOver(kWhile));
  hosts_[1].store->SetFull(false);  // no record changes any more: it tries again by itself
  ExpectGranted(wait);
}

TEST_F(LocksNoSpaceTest, ALockThatMayBeThereIsNotDenied) {
  Wait in_doubt = StartTryInDoubt();
  Wait next = StartTry(0, Flock(2, kExclusive));  // depends on it
  EXPECT_FALSE(in_doubt.IsOver(kWhile));
  EXPECT_FALSE(next.IsOver({}));
  hosts_[0].store->RunLate();
  EXPECT_EQ(Stored().held.size(), 1U);
  hosts_[0].store->SetFull(false);
  ExpectGranted(in_doubt);
  EXPECT_EQ(*next.outcome.get(), Outcome::kWouldBlock);
  EXPECT_EQ(Stored().held.size(), 1U);
  Unlock(0, Flock(1, kExclusive));
  EXPECT_TRUE(Stored().empty());
}

TEST_F(LocksNoSpaceTest, ALockThatMayBeThereIsFreedByClose) {
  Wait in_doubt = StartTryInDoubt();
  hosts_[0].locks->ReleaseHandle(kFile, 1);
  hosts_[0].store->RunLate();
  EXPECT_EQ(Stored().held.size(), 1U);
  hosts_[0].store->SetFull(false);
  ExpectGranted(in_doubt);
  AwaitHeld(0);
}

TEST_F(LocksNoSpaceTest, AWaitInDoubtCanBeInterrupted) {
  ASSERT_EQ(Try(1, Flock(1, kExclusive)), Outcome::kGranted);
  // The host knows of that lock then: what it sends next is that it waits, and no guess that the file has no locks.
  ASSERT_EQ(Try(0, Posix(9, kShared, 0, 0)), Outcome::kGranted);
  ASSERT_EQ(Try(0, Flock(1, kShared)), Outcome::kWouldBlock);
  hosts_[0].store->DelayNextCommit();
  hosts_[0].store->SetFull(true);
  Wait wait = Lock(0, Flock(1, kExclusive));
  AwaitRefusal(0);
  hosts_[0].locks->Cancel(kFile, wait.ticket);
  EXPECT_FALSE(wait.IsOver(kWhile));
  hosts_[0].store->RunLate();
  EXPECT_EQ(Stored().waiting.size(), 1U);
  hosts_[0].store->SetFull(false);
  ASSERT_TRUE(wait.IsOver(kSoon));
  EXPECT_EQ(*wait.outcome.get(), Outcome::kInterrupted);
  EXPECT_TRUE(Stored().waiting.empty());
}

TEST_F(LocksNoSpaceTest, TheEndOfTheMountDoesNotWaitForRoom) {
  const InodeId other{kFile.value + 1};
  Request held = Flock(5, kExclusive);
  held.inode = other;
  ASSERT_EQ(Try(0, held), Outcome::kGranted);
  Wait in_doubt = StartTryInDoubt();
  hosts_[0].locks->ReleaseHandle(other, 5);
  hosts_[0].locks->EndWaits();
  ExpectError(std::move(in_doubt), ErrorCode::kUnavailable);
  hosts_[0].locks.reset();
  EXPECT_EQ(Stored(other).held.size(), 1U);  // until the session ends
}

// The mount ends before the refusal is noted.
TEST_F(LocksNoSpaceTest, TheEndOfTheMountDeniesNoLockThatMayBeThere) {
  hosts_[0].store->on_refusal = [&] { hosts_[0].locks->EndWaits(); };
  hosts_[0].store->DelayNextCommit();
  hosts_[0].store->SetFull(true);
  ExpectError(StartTry(0, Flock(1, kExclusive)), ErrorCode::kUnavailable);
}

TEST_F(LocksNoSpaceTest, TheEndOfTheSessionEndsWhatIsTriedAgain) {
  Wait in_doubt = StartTryInDoubt();
  EndSession(0);
  LearnOfTheEndAndRejoin(0);
  ExpectError(std::move(in_doubt), ErrorCode::kStale);
  hosts_[0].store->SetFull(false);
  hosts_[0].store->RunLate();  // in vain: of the session that is over
  EXPECT_TRUE(Stored().empty());
  EXPECT_EQ(Try(0, Flock(1, kExclusive)), Outcome::kGranted);
}

// A wait that was in doubt when the session ended is no reason for refusing others.
TEST_F(LocksNoSpaceTest, AWaitThatTheSessionTookAlongIsNoDeadlock) {
  ASSERT_EQ(Try(0, Posix(1, kExclusive, 0, 0)), Outcome::kGranted);
  hosts_[0].store->DelayNextCommit();
  hosts_[0].store->SetFull(true);
  Wait in_doubt = Lock(0, Posix(2, kExclusive, 0, 0));
  AwaitRefusal(0);
  EndSession(0);
  LearnOfTheEndAndRejoin(0);
  ExpectError(std::move(in_doubt), ErrorCode::kStale);
  hosts_[0].store->SetFull(false);
  // 2 waits for nobody any more, and may have what 1 waits for.
  Request other = Posix(2, kExclusive);
  other.inode = InodeId{kFile.value + 1};
  ASSERT_EQ(Try(0, other), Outcome::kGranted);
  other = Posix(1, kExclusive);
  other.inode = InodeId{kFile.value + 1};
  Wait wait = Lock(0, other);
  EXPECT_FALSE(wait.IsOver(kWhile));
  other = Posix(2, kExclusive);
  other.inode = InodeId{kFile.value + 1};
  Unlock(0, other);
  ExpectGranted(wait);
}

}  // namespace
}  // namespace cairnfs::coherence
