// Ranks whose hosts lose their sessions: no rank is told of an error of a commit that the others make.
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

class RankGateSessionsTest : public RankGateTest {
 protected:
  // A rename that happens, or fails, while its host loses its session, and of which that host cannot record how it
  // went; every other one goes well.
  std::function<Status()> LosesItsSession(unsigned host, const Status& outcome) {
    hosts_[host]->line->refused_key = GateStateKey(kDirectory);
    return [this, host, outcome]() -> Status {
      const bool is_first = asked_++ == 0;
      if (!is_first || outcome.ok()) has_final_name_ = true;
      if (!is_first) return {};
      hosts_[host]->line->refusals = 1;
      LoseSession(host);
      return outcome;
    };
  }
  void ExpectThatAllCommit(const Status& outcome) {
    auto first = Start(0, Call(0, 2), LosesItsSession(0, outcome));
    auto second = Start(1, Call(1, 2), LosesItsSession(1, outcome));
    for (Pending* call : {&first, &second}) {
      Status status = call->get();
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
    EXPECT_EQ(Ranks(), 0U);
  }

  std::atomic<int> asked_{0};
};

TEST_F(RankGateSessionsTest, WhoComesWhileItsHostHasNoSessionWaitsForTheNext) {
  hosts_[0]->stale_leases = 2;
  Status status = Start(0, Call(0, 1)).get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(hosts_[0]->stale_leases, 0);
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateSessionsTest, WhoseSessionEndsAsItComesComesUnderTheNext) {
  hosts_[0]->line->before_commit = [&] { LoseSession(0); };
  ExpectCommitted(Start(0, Call(0, 1)));
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateSessionsTest, WhoComesWaitsForASessionUntilItsTimeout) {
  hosts_[0]->stale_leases = 1'000'000;
  EXPECT_TRUE(Has(Start(0, Call(0, 1, milliseconds(1))).get(), "the session is lost"));
  EXPECT_EQ(KeysLeft(), 0U);
}

TEST_F(RankGateSessionsTest, WhoHasRenamedAndCannotSaySoHearsIt) { ExpectThatAllCommit({}); }

TEST_F(RankGateSessionsTest, WhoseRenameFailedWithItsSessionHearsOfTheNextOne) {
  ExpectThatAllCommit(MakeError(ErrorCode::kIo, "the session was lost"));
}

// The host of who renames and that of who is to take over were cut off together.
TEST_F(RankGateSessionsTest, WhoTakesOverWithoutASessionWaitsForTheNext) {
  auto call = Start(0, Call(1, 2));
  WaitForRanks(1);
  BeginRename();
  hosts_[0]->stale_leases = 1;
  RenamerGoes();
  Status status = call.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateSessionsTest, WhoLosesItsSessionWhileRanksGatherMayCallAgain) {
  auto other = Start(0, Call(0, 3)), lost = Start(1, Call(1, 3));
  WaitForRanks(2);
  LoseSession(1);
  const Status told = lost.get();
  EXPECT_TRUE(Has(told, "host b lost its session with the cluster while rank 1 waited"));
  EXPECT_EQ(told.error().code, ErrorCode::kStale);
  auto again = Start(1, Call(1, 3));
  ExpectCommitted(Start(2, Call(2, 3)));
  ExpectCommitted(std::move(other));
  ExpectCommitted(std::move(again));
  EXPECT_EQ(renames_, 1);
}

// The store was away for longer than any session lasts.
TEST_F(RankGateSessionsTest, RanksThatAllLoseTheirSessionsOnceTheyAreCountedRename) {
  auto first = Start(0, Call(0, 3)), second = Start(1, Call(1, 3));
  WaitForRanks(2);
  BeginRename();
  for (unsigned host : {0U, 1U}) LoseSession(host);
  RenamerGoes();
  ExpectCommitted(std::move(first));
  ExpectCommitted(std::move(second));
  EXPECT_EQ(renames_, 1);
}

// The others had counted it, and rename: what it looks at in two steps must not tell it that it does not wait.
TEST_F(RankGateSessionsTest, WhoLosesItsSessionOnceItIsCountedHearsTheOutcome) {
  Line& line = *hosts_[0]->line;
  std::atomic<int> reads{0};
  line.before_commit = [&] {
    line.after_read = [&] {  // the state of the gate is read, the ranks are not
      BeginRename();
      LoseSession(0);
      reads = line.reads.load();
    };
  };
  auto call = Start(0, Call(0, 2));
  const auto has_looked_again = [&] { return reads > 0 && line.reads >= reads + 2; };
  ASSERT_TRUE(Eventually([&] { return has_looked_again() || call.IsOverWithin(milliseconds(0)); }));
  GateState done = *State();
  done.phase = GatePhase::kDone;
  SetState(done);
  Status status = call.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(renames_, 0);
}

// What ends the call is not what the directory is.
TEST_F(RankGateSessionsTest, WhoLeavesATryThatIsDoneHearsThatItIsDone) {
  Line& line = *hosts_[0]->line;
  line.refused_key = GateStateKey(kDirectory);
  line.refusal = ErrorCode::kNoSpace;
  Status status = Start(0, Call(0, 1), [&]() -> Status {
                    GateState done = *State();
                    done.phase = GatePhase::kDone;
                    SetState(done);
                    line.refusals = 1;
                    return {};
                  }).get();
  EXPECT_EQ(line.refusals, 0);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace
}  // namespace cairnfs::control
