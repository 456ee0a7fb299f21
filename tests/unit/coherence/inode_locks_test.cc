// InodeLocks: what is to be done for one inode, step by step, with neither threads nor a store.
#include "coherence/inode_locks.h"

#include <gtest/gtest.h>

namespace cairnfs::coherence {
namespace {

using Kind = LockOperation::Kind;
using Step = LockWork::Step;

cluster::NodeId Node(int number) {
  cluster::NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

FileLock Exclusive(int node, uint64_t owner) {
  return {{Node(node), LockKind::kRecord, owner}, LockType::kExclusive, 0, kLockOffsetMax, owner, 1};
}

kv::KvEvent Changed(int node, const std::optional<HostLocks>& locks, uint64_t revision) {
  const std::string key = LocksKey(InodeId{7}, Node(node));
  return {key, locks ? std::optional(locks->Encode()) : std::nullopt, revision};
}

HostLocks Holding(const FileLock& lock) {
  HostLocks locks;
  EXPECT_TRUE(locks.held.Set(lock).ok());
  return locks;
}

class InodeLocksTest : public ::testing::Test {
 protected:
  void Ask(Kind kind, const FileLock& lock, LockTicket ticket = 0) {
    locks_.Ask({kind, lock, ticket, [this](Result<LockAnswer> answer) { answers_.push_back(std::move(answer)); }});
  }
  LockWork Next() {
    InodeLocks::Answers answers;
    LockWork work = locks_.Next({false, {}, [this](const LockOwner&) { return is_holder_; }}, answers);
    Tell(answers);
    return work;
  }
  void Committed(LockWork work) {
    InodeLocks::Answers answers;
    locks_.NoteCommitted(work, answers);
    Tell(answers);
  }
  void Refused(LockWork work, ErrorCode code) {
    InodeLocks::Answers answers;
    locks_.NoteRefused(work, MakeError(code, "refused"), answers);
    Tell(answers);
  }
  // The other host has the locks.
  void Read(const LockWork& work, const HostLocks& other, uint64_t revision) {
    kv::KvRange range;
    range.entries.push_back({LocksKey(InodeId{7}, Node(2)), other.Encode(), revision});
    range.revision = revision;
    InodeLocks::Answers answers;
    locks_.NoteRead(work, range, answers);
    Tell(answers);
  }
  void ExpectAnswer(LockOutcome outcome) {
    ASSERT_EQ(answers_.size(), 1U);
    ASSERT_TRUE(answers_[0].ok());
    EXPECT_EQ(answers_[0]->outcome, outcome);
    answers_.clear();
  }

  // Until the wait is announced.
  void Announce(const FileLock& lock, LockTicket ticket, const HostLocks& others) {
    Ask(Kind::kWait, lock, ticket);
    Refused(Next(), ErrorCode::kConflict);
    Read(Next(), others, 10);
    Committed(Next());
  }

  InodeLocks locks_{Node(1)};
  bool is_holder_ = false;  // on other files
  std::vector<Result<LockAnswer>> answers_;

 private:
  static void Tell(InodeLocks::Answers& answers) {
    for (auto& [done, answer] : answers) done(std::move(answer));
  }
};

TEST_F(InodeLocksTest, AGuessSavesTheRead) {
  Ask(Kind::kTry, Exclusive(1, 1));
  LockWork work = Next();
  EXPECT_EQ(work.step, Step::kCommit);
  EXPECT_TRUE(work.takes);
  EXPECT_EQ(work.as_of, 0U);  // no other host has locks
  EXPECT_EQ(work.record.held.held().size(), 1U);
  EXPECT_TRUE(answers_.empty());
  Committed(std::move(work));
  ExpectAnswer(LockOutcome::kGranted);
  EXPECT_EQ(Next().step, Step::kIdle);
}

TEST_F(InodeLocksTest, WhatWasWrongIsReadAndThenRefused) {
  Ask(Kind::kTry, Exclusive(1, 1));
  Refused(Next(), ErrorCode::kConflict);
  LockWork read = Next();
  ASSERT_EQ(read.step, Step::kRead);
  Read(read, Holding(Exclusive(2, 1)), 10);
  EXPECT_EQ(Next().step, Step::kIdle);
  ExpectAnswer(LockOutcome::kWouldBlock);
  EXPECT_TRUE(locks_.held().empty());
}

TEST_F(InodeLocksTest, AWaitIsAnnouncedAndTakesItsLockWhenItIsFree) {
  Ask(Kind::kWait, Exclusive(1, 1), 5);
  Refused(Next(), ErrorCode::kConflict);
  Read(Next(), Holding(Exclusive(2, 1)), 10);
  locks_.NoteChanges({}, 11);
  LockWork announced = Next();
  ASSERT_EQ(announced.step, Step::kCommit);
  EXPECT_FALSE(announced.takes);
  ASSERT_EQ(announced.record.waiting.size(), 1U);
  EXPECT_EQ(announced.record.waiting[0].since, 11U);
  Committed(std::move(announced));
  EXPECT_EQ(Next().step, Step::kIdle);
  EXPECT_TRUE(answers_.empty());

  locks_.NoteChanges({Changed(2, std::nullopt, 20)}, 20);
  LockWork taken = Next();
  ASSERT_TRUE(taken.takes);
  EXPECT_EQ(taken.as_of, 20U);
  EXPECT_TRUE(taken.record.waiting.empty());
  // Another host was quicker.
  Refused(std::move(taken), ErrorCode::kConflict);
  Read(Next(), Holding(Exclusive(2, 3)), 21);
  EXPECT_EQ(Next().step, Step::kIdle);
  EXPECT_TRUE(locks_.waits());
  locks_.NoteChanges({Changed(2, std::nullopt, 22)}, 22);
  Committed(Next());
  ExpectAnswer(LockOutcome::kGranted);
  EXPECT_FALSE(locks_.waits());
}

TEST_F(InodeLocksTest, AWaitThatClosesACycleIsRefusedWhileTheCycleStands) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  LockWork look = Next();
  ASSERT_EQ(look.step, Step::kFindCycle);
  EXPECT_EQ(look.wanted, Exclusive(1, 1));
  const LockCycle cycle = {{"a record", 10}};
  locks_.NoteCycle(look, cycle);
  LockWork refusal = Next();
  ASSERT_EQ(refusal.step, Step::kCommit);
  EXPECT_FALSE(refusal.takes);
  EXPECT_TRUE(refusal.record.empty());
  ASSERT_EQ(refusal.cycle.size(), 1U);
  EXPECT_EQ(refusal.cycle[0].revision, 10U);
  // It has changed: perhaps somebody else was refused.
  Refused(std::move(refusal), ErrorCode::kConflict);
  EXPECT_TRUE(answers_.empty());
  locks_.LookAgain();
  look = Next();
  ASSERT_EQ(look.step, Step::kFindCycle);
  locks_.NoteCycle(look, cycle);
  Committed(Next());
  ExpectAnswer(LockOutcome::kDeadlock);
  EXPECT_FALSE(locks_.waits());
  EXPECT_EQ(Next().step, Step::kIdle);
}

TEST_F(InodeLocksTest, AWaitThatClosesNoCycleGoesOn) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {});
  EXPECT_EQ(Next().step, Step::kIdle);
  EXPECT_TRUE(locks_.waits());
}

TEST_F(InodeLocksTest, ALockThatIsFreeIsTakenRatherThanRefused) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {{"a record", 10}});
  locks_.NoteChanges({Changed(2, std::nullopt, 20)}, 20);
  EXPECT_TRUE(Next().takes);
}

TEST_F(InodeLocksTest, AWaitThatIsOverIsNotRefused) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  const LockWork look = Next();
  Ask(Kind::kCancel, {}, 5);
  Committed(Next());
  ExpectAnswer(LockOutcome::kInterrupted);
  locks_.NoteCycle(look, {{"a record", 10}});
  EXPECT_EQ(Next().step, Step::kIdle);
}

// The records of a cycle may change all the time, and others ask for locks meanwhile.
TEST_F(InodeLocksTest, LooksForCyclesTakeTurnsWithWhatIsAsked) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {{"a record", 10}});
  Refused(Next(), ErrorCode::kConflict);
  locks_.LookAgain();
  Ask(Kind::kTest, Exclusive(1, 3));
  EXPECT_EQ(Next().step, Step::kRead);
  EXPECT_EQ(Next().step, Step::kFindCycle);
}

TEST_F(InodeLocksTest, ATurnThatNeedsNoWorkIsFollowedByALook) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {{"a record", 10}});
  Refused(Next(), ErrorCode::kConflict);
  locks_.LookAgain();
  Ask(Kind::kUnlock, Exclusive(1, 3));  // of what it does not hold
  EXPECT_EQ(Next().step, Step::kFindCycle);
  EXPECT_EQ(answers_.size(), 1U);
}

// The records of a cycle may change all the time, and each look reads the locks of all files.
TEST_F(InodeLocksTest, ALookInVainIsFollowedByARest) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  for (unsigned vain = 1; vain <= 3; ++vain) {
    const LockWork look = Next();
    ASSERT_EQ(look.step, Step::kFindCycle);
    locks_.NoteCycle(look, {{"a record", 10}});
    Refused(Next(), ErrorCode::kConflict);
    EXPECT_EQ(Next().step, Step::kIdle);
    EXPECT_TRUE(locks_.rests_from_looks());
    EXPECT_EQ(locks_.vain_looks(), vain);
    locks_.LookAgain();
  }
  locks_.NoteCycle(Next(), {});
  EXPECT_EQ(locks_.vain_looks(), 0U);
  EXPECT_EQ(Next().step, Step::kIdle);
}

// What is asked for goes on meanwhile, and what is free is taken.
TEST_F(InodeLocksTest, ARestFromLooksHoldsUpNothingElse) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {{"a record", 10}});
  Refused(Next(), ErrorCode::kConflict);
  Ask(Kind::kTest, Exclusive(1, 3));
  EXPECT_EQ(Next().step, Step::kRead);
  locks_.NoteChanges({Changed(2, std::nullopt, 20)}, 20);
  EXPECT_TRUE(Next().takes);
}

TEST_F(InodeLocksTest, ARefusalThatFindsNoRoomIsTriedAgain) {
  is_holder_ = true;
  Announce(Exclusive(1, 1), 5, Holding(Exclusive(2, 1)));
  locks_.NoteCycle(Next(), {{"a record", 10}});
  Refused(Next(), ErrorCode::kNoSpace);
  EXPECT_TRUE(answers_.empty());
  EXPECT_TRUE(locks_.is_stalled());
  locks_.GoOn();
  EXPECT_EQ(Next().step, Step::kFindCycle);
}

TEST_F(InodeLocksTest, WhatCannotBeFreedInTheStoreIsMadeGoodLater) {
  Ask(Kind::kTry, Exclusive(1, 1));
  Committed(Next());
  answers_.clear();
  Ask(Kind::kUnlock, Exclusive(1, 1));
  LockWork work = Next();
  EXPECT_TRUE(work.record.empty());
  Refused(std::move(work), ErrorCode::kNoSpace);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].error().code, ErrorCode::kNoSpace);
  answers_.clear();
  EXPECT_TRUE(locks_.held().empty());
  EXPECT_TRUE(locks_.is_stalled());
  EXPECT_EQ(Next().step, Step::kIdle);
  // What is asked for takes it along.
  Ask(Kind::kTry, Exclusive(1, 2));
  work = Next();
  ASSERT_EQ(work.record.held.held().size(), 1U);
  EXPECT_EQ(work.record.held.held()[0].owner.number, 2U);
  Refused(std::move(work), ErrorCode::kNoSpace);
  answers_.clear();
  locks_.GoOn();
  work = Next();
  EXPECT_TRUE(work.record.empty());
  Committed(std::move(work));
  EXPECT_FALSE(locks_.is_behind());
  EXPECT_EQ(Next().step, Step::kIdle);
}

// What was read before the watch lost changes may lack them.
TEST_F(InodeLocksTest, AReadThatWasUnderWayAtALossCountsForNothing) {
  locks_.NoteChangesLost();
  Ask(Kind::kWait, Exclusive(1, 1), 1);
  const LockWork before = Next();
  ASSERT_EQ(before.step, Step::kRead);
  locks_.NoteChangesLost();
  Read(before, HostLocks(), 100);
  EXPECT_EQ(Next().step, Step::kRead);
}

TEST_F(InodeLocksTest, WhatFreesNeedsNoRecordOfOthers) {
  Ask(Kind::kTry, Exclusive(1, 1));
  Committed(Next());
  ExpectAnswer(LockOutcome::kGranted);
  locks_.NoteChangesLost();
  Ask(Kind::kUnlock, Exclusive(1, 1));
  const LockWork work = Next();
  EXPECT_EQ(work.step, Step::kCommit);
  EXPECT_TRUE(work.record.held.held().empty());
}

}  // namespace
}  // namespace cairnfs::coherence
