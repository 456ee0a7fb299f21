// Ranks that come while a rename is under way, or was, when its job was killed: of that job, or of the next one, which
// writes into the same directory. None of them renames before all have come again.
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

class RankGateLateTest : public RankGateTest {
 protected:
  // Returns once it has seen that the rename is under way.
  Pending StartAndLook(unsigned host, const GateCall& call) {
    auto has_looked = std::make_shared<std::atomic<bool>>(false);
    hosts_[host]->line->after_read = [has_looked] { *has_looked = true; };
    Pending late = Start(host, call);
    EXPECT_TRUE(Eventually([&] { return has_looked->load(); }));
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
    EXPECT_EQ(KeysLeft(), 0U);
  }
  static void ExpectCommitted(Pending call) {
    Status status = call.get();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
};

TEST_F(RankGateLateTest, TheNextJobComesAgainWhereAllOfTheLastWereKilled) {
  std::atomic<bool> is_killed{false};
  auto dies = [&]() -> Status {
    is_killed = true;
    return MakeError(ErrorCode::kInterrupted, "killed");
  };
  auto run = [&](unsigned rank) {
    return std::async(std::launch::async, [&, rank] {
      return hosts_[rank]->gate->Commit(Call(rank, 2), CallerThat(dies, [&] { return is_killed.load(); }));
    });
  };
  auto first = run(0), second = run(1);
  EXPECT_FALSE(first.get().ok());
  EXPECT_FALSE(second.get().ok());
  ASSERT_EQ(DecodeGateState((*store_->Get(GateStateKey(kDirectory)))->value)->phase, GatePhase::kRenaming);
  ExpectThatAllComeAgain(Start(0, Call(0, 2)));
}

TEST_F(RankGateLateTest, TheNextJobComesAgainWhereTheHostsOfTheLastDied) {
  BeginRename();
  ElectedGoes();
  ExpectThatAllComeAgain(Start(0, Call(0, 2)));
}

TEST_F(RankGateLateTest, TheNextJobComesAgainWhenTheHostOfWhoRenamedIsTakenForDead) {
  BeginRename();
  Pending next = StartAndLook(0, Call(0, 2));
  EXPECT_EQ(WaitingRanks(), 0U);
  ElectedGoes();
  ExpectThatAllComeAgain(std::move(next));
}

// Its own time was over before it could begin to wait for the others.
TEST_F(RankGateLateTest, WhoWasLateForLongGivesTheOthersTheirTime) {
  constexpr milliseconds kTimeout{5000};
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2, kTimeout));
  EXPECT_FALSE(late.IsOverWithin(kTimeout));
  ElectedGoes();
  EXPECT_TRUE(Eventually([&] { return WaitingRanks() == 1 && Generation() == 2; }));
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
  ElectedGoes();
  EXPECT_FALSE(late.IsOverWithin(kTimeout));
  hosts_[0]->stale_leases = 0;
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateLateTest, RanksThatWaitForTheSameRenameMeetAfterIt) {
  BeginRename();
  Pending first = StartAndLook(0, Call(0, 2)), second = StartAndLook(1, Call(1, 2));
  ElectedGoes();
  ExpectCommitted(std::move(first));
  ExpectCommitted(std::move(second));
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
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
  std::atomic<bool> has_looked{false};
  hosts_[0]->line->after_read = [&] { has_looked = true; };
  Pending late = Start(0, Call(0, 2), fails);
  ASSERT_TRUE(Eventually([&] { return has_looked.load(); }));
  ElectedGoes();
  ExpectCommitted(std::move(counted));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
}

// Whoever renamed died before it could say so.
TEST_F(RankGateLateTest, ARenameThatNobodyTellsOfIsFoundByTheName) {
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2));
  has_final_name_ = true;
  ElectedGoes();
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 0);
  EXPECT_EQ(KeysLeft(), 0U);
}

// As above, and one that is late was quicker than the rename.
TEST_F(RankGateLateTest, ARenameThatRunsAfterTheNextGenerationBeganIsFoundByTheName) {
  Pending counted = Start(1, Call(1, 2));
  WaitForRanks(1);
  has_final_name_ = true;
  GateState next = DoneState();
  next.phase = GatePhase::kGathering;
  next.generation = 2;
  Put(GateStateKey(kDirectory), next.Encode());
  ExpectCommitted(std::move(counted));
  EXPECT_EQ(renames_, 0);
}

TEST_F(RankGateLateTest, WhoseTimeoutEndsLooksWhetherTheDirectoryHasItsName) {
  hosts_[0]->line->before_commit = [&] { has_final_name_ = true; };
  ExpectCommitted(Start(0, Call(0, 2, milliseconds(1))));
  EXPECT_EQ(renames_, 0);
  EXPECT_EQ(KeysLeft(), 0U);
}

// It has no record that keeps the gate for it; and somebody renames the directory once more.
TEST_F(RankGateLateTest, WhoIsLateHearsWhatItWaitedFor) {
  BeginRename();
  Pending late = StartAndLook(0, Call(0, 2));
  hosts_[0]->line->failing_reads = 1;  // and the store is away for a moment
  Put(GateStateKey(kDirectory), DoneState().Encode());
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 0);
}

}  // namespace
}  // namespace cairnfs::control
