// Ranks that come while a rename is under way, or was, when its job was killed: of that job, or of the next one, which
// writes into the same directory. None of them renames before all have come again.
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

class RankGateLateTest : public RankGateTest {
 protected:
  // Returns once it has seen that the rename is under way.
  Pending StartAndLook(unsigned host, const GateCall& call, std::function<Status()> rename = {}) {
    const Line& line = *hosts_[host]->line;
    const int before = line.looks_for_ranks;
    Pending late = rename ? Start(host, call, std::move(rename)) : Start(host, call);
    EXPECT_TRUE(Eventually([&] { return line.looks_for_ranks > before; }));
    return late;
  }
  // Rank 0 of the next job has begun to gather, alone; then rank 1 comes.
  void ExpectThatAllComeAgain(Pending next) {
    WaitForRanks(1);
    EXPECT_FALSE(next.IsOverWithin(milliseconds(300)));
    EXPECT_EQ(renames_, 0);
    ExpectCommitted(Start(1, Call(1, 2)));
    ExpectCommitted(std::move(next));
    EXPECT_EQ(renames_, 1);
  }
};

TEST_F(RankGateLateTest, TheNextJobComesAgainWhereAllOfTheLastWereKilled) {
  std::stop_source killed;
  auto dies = [&]() -> Status {
    killed.request_stop();
    return MakeError(ErrorCode::kInterrupted, "killed");
  };
  auto first = Start(0, Call(0, 2), dies, killed), second = Start(1, Call(1, 2), dies, killed);
  EXPECT_FALSE(first.get().ok());
  EXPECT_FALSE(second.get().ok());
  ASSERT_EQ(State()->phase, GatePhase::kRenaming);
  ExpectThatAllComeAgain(Start(0, Call(0, 2)));
}

TEST_F(RankGateLateTest, TheNextJobComesAgainWhereTheHostsOfTheLastDied) {
  BeginRename();
  RenamerGoes();
  ExpectThatAllComeAgain(Start(0, Call(0, 2)));
}

TEST_F(RankGateLateTest, TheNextJobComesAgainWhenTheHostOfWhoRenamedIsTakenForDead) {
  BeginRename();
  Pending next = StartAndLook(0, Call(0, 2));
  EXPECT_EQ(Ranks(), 1U) << "whoever is late leaves no record";
  RenamerGoes();
  ExpectThatAllComeAgain(std::move(next));
}

// What it looked at was a try that gathered.
TEST_F(RankGateLateTest, WhoComesAsTheOthersAreCountedIsLate) {
  SetState(StateOf(GatePhase::kGathering));
  hosts_[0]->line->before_commit = [&] { BeginRename(); };
  Pending late = Start(0, Call(0, 2));
  EXPECT_FALSE(late.IsOverWithin(milliseconds(300)));
  EXPECT_EQ(Ranks(), 1U);
  RenamerGoes();
  ExpectThatAllComeAgain(std::move(late));
}

// Its own time was over before it could begin to wait for the others.
TEST_F(RankGateLateTest, WhoWasLateForLongGivesTheOthersTheirTime) {
  constexpr milliseconds kTimeout{5000};
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2, kTimeout));
  EXPECT_FALSE(late.IsOverWithin(kTimeout));
  RenamerGoes();
  WaitForRanks(1);
  // It has counted at least once before the other one comes.
  EXPECT_FALSE(late.IsOverWithin(milliseconds(300)));
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 1);
}

// Its host loses its session while it waits, and takes a new one after its timeout.
TEST_F(RankGateLateTest, WhoIsLateOutlastsThatItsHostHasNoSession) {
  constexpr milliseconds kTimeout{5000};
  BeginRename();
  hosts_[0]->stale_leases = 1'000'000;
  Pending late = StartAndLook(0, Call(0, 2, kTimeout));
  RenamerGoes();
  EXPECT_FALSE(late.IsOverWithin(2 * kTimeout));
  hosts_[0]->stale_leases = 0;
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateLateTest, RanksThatWaitForTheSameRenameMeetAfterIt) {
  BeginRename();
  Pending first = StartAndLook(0, Call(0, 2)), second = StartAndLook(1, Call(1, 2));
  RenamerGoes();
  ExpectCommitted(std::move(first));
  ExpectCommitted(std::move(second));
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateLateTest, WhoWasCountedTakesOver) {
  Pending counted = Start(1, Call(1, 2));
  WaitForRanks(1);
  BeginRename();
  std::atomic<int> asked{0};
  auto fails = [&]() -> Status {
    ++asked;
    return MakeError(ErrorCode::kIo, "it was not for it to rename");
  };
  Pending late = StartAndLook(0, Call(0, 2), fails);
  RenamerGoes();
  ExpectCommitted(std::move(counted));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(renames_, 1);
}

// Whoever renamed died before it could say so.
TEST_F(RankGateLateTest, ARenameThatNobodyTellsOfIsFoundByTheName) {
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2));
  has_final_name_ = true;
  RenamerGoes();
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 0);
}

// As above, and one that is late was quicker than the rename.
TEST_F(RankGateLateTest, ARenameThatRunsAfterTheNextTryBeganIsFoundByTheName) {
  for (const bool has_run : {true, false}) {
    has_final_name_ = false;
    Pending counted = Start(1, Call(1, 2));
    WaitForRanks(1);
    has_final_name_ = has_run;
    GateState next = StateOf(GatePhase::kGathering);
    next.try_id = State()->try_id + 1;
    SetState(next);
    const Status told = counted.get();
    EXPECT_EQ(told.ok(), has_run);
    if (!has_run) {
      EXPECT_TRUE(Has(told, "not committed: rank 1 was taken for dead while it waited"));
    }
    EXPECT_EQ(State()->try_id, next.try_id);
    EXPECT_EQ(State()->phase, GatePhase::kGathering) << "the next try goes on";
  }
  EXPECT_EQ(renames_, 0);
}

TEST_F(RankGateLateTest, WhoseTimeoutEndsLooksWhetherTheDirectoryHasItsName) {
  hosts_[0]->line->before_commit = [&] { has_final_name_ = true; };
  ExpectCommitted(Start(0, Call(0, 2, milliseconds(1))));
  EXPECT_EQ(renames_, 0);
}

// It has no record, and somebody renames the directory once more.
TEST_F(RankGateLateTest, WhoIsLateHearsWhatItWaitedFor) {
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2));
  hosts_[0]->line->failing_reads = 1;  // and the store is away for a moment
  SetState(StateOf(GatePhase::kDone));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 0);
}

// Both jobs have as many ranks, and want the same.
TEST_F(RankGateLateTest, ARankOfTheNextJobIsNotCountedForTheLastOne) {
  Pending old = Start(0, Call(0, 2));
  WaitForRanks(1);
  // Rank 1 of the old job was killed before it came; rank 0 lives, and its launcher kills it only now.
  old.Interrupt();
  EXPECT_FALSE(old.get().ok());
  Pending next = Start(1, Call(1, 2));
  WaitForRanks(1);
  EXPECT_FALSE(next.IsOverWithin(milliseconds(10'000)));
  EXPECT_EQ(renames_, 0);
  ExpectCommitted(Start(0, Call(0, 2)));
  ExpectCommitted(std::move(next));
}

}  // namespace
}  // namespace cairnfs::control
