// Answers that are lost, stores that fail, ranks that go, and gates that stay behind.
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

using RankGateErrorsTest = RankGateTest;

TEST_F(RankGateErrorsTest, AStoreThatIsAwayForAWhileIsWaitedFor) {
  Line& line = *hosts_[0]->line;
  line.before_commit = [&] { line.failing_reads = 1; };  // the first one after it came
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  ASSERT_TRUE(Eventually([&] { return line.failing_reads == 0; }));
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(first));
}

TEST_F(RankGateErrorsTest, WhoIsToldOfAnErrorDoesNotCount) {
  Line& line = *hosts_[0]->line;
  line.read_error = ErrorCode::kIo;
  line.before_commit = [&] { line.failing_reads = 1; };
  EXPECT_TRUE(Has(Start(0, Call(0, 2)).get(), "as the test wants it"));
  EXPECT_EQ(Ranks(), 0U);
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(1))).get(), "rank 0 did not come"));
  EXPECT_EQ(renames_, 0);
}

// A call that is over counts for nothing. So it is not over while its record cannot be taken away.
TEST_F(RankGateErrorsTest, ACallEndsOnceItsRecordIsGone) {
  Line& line = *hosts_[0]->line;
  line.read_error = ErrorCode::kIo;
  line.before_commit = [&] { line.failing_reads = 1'000'000; };
  auto call = Start(0, Call(0, 2));
  WaitForRanks(1);
  EXPECT_FALSE(call.IsOverWithin(milliseconds(30'000)));
  line.failing_reads = 0;
  EXPECT_TRUE(Has(call.get(), "as the test wants it"));
  EXPECT_EQ(Ranks(), 0U);
}

// The daemon stops: what its ranks have written goes with its session.
TEST_F(RankGateErrorsTest, ACallEndsWithTheDaemon) {
  Line& line = *hosts_[0]->line;
  line.lost_key = GateStateKey(kDirectory);
  line.lost_answers = 1'000'000;
  std::stop_source stop;
  auto call = std::async(std::launch::async, [&] {
    const Context stopping(stop.get_token());
    return hosts_[0]->gate->Commit(
        Call(0, 2), {[] { return Status(); }, []() -> Result<bool> { return false; }, stopping, stopping});
  });
  WaitForRanks(1);
  stop.request_stop();
  EXPECT_FALSE(call.get().ok());
}

// The renamer's process is killed, and its daemon cannot say so at once.
TEST_F(RankGateErrorsTest, ARenamerIsTakenBackLater) {
  Line& line = *hosts_[0]->line;
  auto dies = [&]() -> Status {
    line.failing_reads = 1'000'000;
    return MakeError(ErrorCode::kInterrupted, "killed");
  };
  auto killed = Start(0, Call(0, 1), dies);
  EXPECT_FALSE(killed.IsOverWithin(milliseconds(10'000)));
  EXPECT_EQ(State()->renamer, GateRankName(0, ""));
  line.failing_reads = 0;
  EXPECT_FALSE(killed.get().ok());
  EXPECT_EQ(State()->renamer, "");
  ExpectCommitted(Start(1, Call(0, 1)));
  EXPECT_EQ(KeysLeft(), 0U);
}

// It is interrupted while the answer to its arrival is on its way.
TEST_F(RankGateErrorsTest, WhoIsInterruptedAsItComesDoesNotCount) {
  Line& line = *hosts_[0]->line;
  std::stop_source stop;
  line.before_commit = [&] { stop.request_stop(); };
  line.lost_answers = 3;
  EXPECT_EQ(Start(
                0, Call(0, 2), [] { return Status(); }, stop)
                .get()
                .error()
                .code,
            ErrorCode::kInterrupted);
  EXPECT_EQ(line.lost_answers, 0);
  EXPECT_EQ(Ranks(), 0U);
}

// It comes, is to rename, has renamed, and leaves: each time it finds out.
TEST_F(RankGateErrorsTest, EachAnswerThatIsLostIsFoundOut) {
  for (unsigned host : {0U, 1U}) {
    hosts_[host]->line->lost_key = kGatesPrefix;
    hosts_[host]->line->lost_answers = 2;
  }
  auto first = Start(0, Call(0, 2));
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(first));
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(Ranks(), 0U);
}

// The metadata was away when the rename ended: whether it ran shows once they are back.
TEST_F(RankGateErrorsTest, ARenameThatMayHaveRunIsNotToldAsFailed) {
  for (ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kStale}) {
    has_final_name_ = false;
    std::atomic<int> asked{0};
    auto rename = [&]() -> Status {
      if (asked++ == 0) return MakeError(code, "the answer was lost");
      has_final_name_ = true;
      return {};
    };
    auto first = Start(0, Call(0, 2), rename);
    auto second = Start(1, Call(1, 2), rename);
    ExpectCommitted(std::move(first));
    ExpectCommitted(std::move(second));
    EXPECT_EQ(asked, 2);
  }
}

// It has renamed, and the store takes no outcome from it: another rank finds the name.
TEST_F(RankGateErrorsTest, AnOutcomeThatIsRefusedIsRecordedByAnother) {
  auto rename = [&](unsigned host) {
    return [&, host]() -> Status {
      if (!has_final_name_) hosts_[host]->line->refusals = 1;
      has_final_name_ = true;
      return {};
    };
  };
  for (unsigned host : {0U, 1U}) hosts_[host]->line->refusal = ErrorCode::kNoSpace;
  auto first = Start(0, Call(0, 2), rename(0)), second = Start(1, Call(1, 2), rename(1));
  const Status statuses[] = {first.get(), second.get()};
  const Status& refused = statuses[0].ok() ? statuses[1] : statuses[0];
  EXPECT_TRUE(statuses[0].ok() || statuses[1].ok());
  EXPECT_TRUE(Has(refused, "the directory is renamed, but the other ranks cannot be told"));
}

TEST_F(RankGateErrorsTest, WhoRenamesIsNotWaitedForForEver) {
  hosts_[0]->gate = MakeGate(*hosts_[0], "a", milliseconds(20'000));
  BeginRename();
  Pending late = Start(0, Call(1, 2));
  EXPECT_FALSE(late.IsOverWithin(milliseconds(15'000)));
  EXPECT_TRUE(Has(late.get(), "a rank on host z was to rename it, and did not say within 20 s how that went"));
  EXPECT_EQ(Ranks(), 1U);
}

// As one whose ranks died with their hosts before they left.
TEST_F(RankGateErrorsTest, AGateThatWasDoneDoesNotSpeakForTheNextCommit) {
  SetState(StateOf(GatePhase::kDone));
  ExpectThatTwoCommit();
  SetState(StateOf(GatePhase::kDone));
  has_final_name_ = false;
  ExpectCommitted(Start(0, Call(0, 1)));  // nor for one with fewer ranks
  EXPECT_EQ(renames_, 2);
  EXPECT_EQ(KeysLeft(), 0U);
}

TEST_F(RankGateErrorsTest, ACommitTakesDownGatesThatNobodyUses) {
  for (const GatePhase phase : {GatePhase::kGathering, GatePhase::kRenaming, GatePhase::kDone, GatePhase::kFailed}) {
    const InodeId used{18}, unused{19};
    const GateState state = StateOf(phase);
    for (InodeId directory : {used, unused}) Put(GateStateKey(directory), state.Encode());
    Put(GateRanksPrefix(used, state.try_id) + GateRankName(0, ""), GateRank{"c", 5}.Encode());
    Put(GateRanksPrefix(unused, state.try_id + 1) + GateRankName(0, ""), GateRank{"c", 5}.Encode());  // of another try
    has_final_name_ = false;
    ExpectCommitted(Start(0, Call(0, 1)));
    EXPECT_TRUE((*store_->Get({}, GateStateKey(used))).has_value());
    EXPECT_FALSE((*store_->Get({}, GateStateKey(unused))).has_value());
    EXPECT_FALSE(State().has_value());
  }
}

// Another call of this rank came between what the one that leaves saw and its leaving.
TEST_F(RankGateErrorsTest, WhoLeavesDoesNotTakeItsSuccessorAway) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  Pending successor;
  hosts_[0]->line->before_commit = [&] {
    successor = Start(1, Call(0, 2));
    EXPECT_TRUE(Eventually([&] {
      const auto record = *store_->Get({}, RankKey(State()->try_id, 0));
      return record && DecodeGateRank(record->value)->host == "b";
    }));
  };
  first.Interrupt();
  EXPECT_EQ(first.get().error().code, ErrorCode::kInterrupted);
  ASSERT_EQ(Ranks(), 1U);
  ExpectCommitted(Start(2, Call(1, 2)));
  ExpectCommitted(std::move(successor));
}

}  // namespace
}  // namespace cairnfs::control
