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
    EXPECT_EQ(KeysLeft(), 0U);
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
  ElectedGoes();
  Status status = call.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
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
  Put(GateStateKey(kDirectory), DoneState().Encode());
  Status status = call.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(renames_, 0);
}

// What ends the call is not what the directory is.
TEST_F(RankGateSessionsTest, WhoWithdrawsFromAGateThatIsDoneHearsThatItIsDone) {
  Line& line = *hosts_[0]->line;
  line.refused_key = GateStateKey(kDirectory);
  line.refusal = ErrorCode::kIo;
  Status status = Start(0, Call(0, 1), [&]() -> Status {
                    GateState done = DoneState();
                    done.ranks = 1;
                    Put(GateStateKey(kDirectory), done.Encode());
                    line.refusals = 1;
                    return {};
                  }).get();
  EXPECT_EQ(line.refusals, 0);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace
}  // namespace cairnfs::control
