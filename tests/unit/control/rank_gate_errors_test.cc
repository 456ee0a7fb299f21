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
  EXPECT_TRUE(Start(1, Call(1, 2)).get().ok());
  Status status = first.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
}

TEST_F(RankGateErrorsTest, WhoIsToldOfAnErrorDoesNotCount) {
  Line& line = *hosts_[0]->line;
  line.read_error = ErrorCode::kIo;
  line.before_commit = [&] { line.failing_reads = 1; };
  EXPECT_TRUE(Has(Start(0, Call(0, 2)).get(), "as the test wants it"));
  EXPECT_EQ(WaitingRanks(), 0U);
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(1))).get(), "rank 0 did not come"));
  EXPECT_EQ(renames_, 0);
}

TEST_F(RankGateErrorsTest, WhatCannotBeWithdrawnIsWithdrawnLater) {
  Line& line = *hosts_[0]->line;
  line.read_error = ErrorCode::kIo;
  line.before_commit = [&] { line.failing_reads = 1'000'000; };
  EXPECT_TRUE(Has(Start(0, Call(0, 2)).get(), "as the test wants it"));
  EXPECT_EQ(WaitingRanks(), 1U);
  line.failing_reads = 0;
  EXPECT_TRUE(Eventually([&] { return WaitingRanks() == 0; }));
}

// The renamer's process is killed, and its daemon cannot say so at once.
TEST_F(RankGateErrorsTest, AnElectionIsTakenBackLater) {
  Line& line = *hosts_[0]->line;
  auto dies = [&]() -> Status {
    line.failing_reads = 1'000'000;
    return MakeError(ErrorCode::kInterrupted, "killed");
  };
  EXPECT_FALSE(Start(0, Call(0, 1), dies).get().ok());
  EXPECT_TRUE((*store_->Get(GateElectedKey(kDirectory))).has_value());
  line.failing_reads = 0;
  EXPECT_TRUE(Eventually([&] { return !(*store_->Get(GateElectedKey(kDirectory))).has_value(); }));
  EXPECT_TRUE(Start(1, Call(0, 1)).get().ok());
  EXPECT_EQ(KeysLeft(), 0U);
}

// It is interrupted while its request is still on its way.
TEST_F(RankGateErrorsTest, WhoIsInterruptedDoesNotComeLater) {
  Line& line = *hosts_[0]->line;
  line.held_key = GateRankKey(kDirectory, 0, "");
  auto rename = []() -> Status { return {}; };
  Status status = hosts_[0]->gate->Commit(Call(0, 2), CallerThat(rename, [] { return true; }));
  EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
  line.RunHeld();
  EXPECT_EQ(WaitingRanks(), 0U);
}

TEST_F(RankGateErrorsTest, AnElectionWhoseAnswerIsLostIsFoundOut) {
  for (unsigned host : {0U, 1U}) {
    hosts_[host]->line->lost_key = GateElectedKey(kDirectory);
    hosts_[host]->line->lost_answers = 1;
  }
  auto first = Start(0, Call(0, 2));
  EXPECT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
}

// It comes, is elected, and has renamed: each time it finds out.
TEST_F(RankGateErrorsTest, EachAnswerThatIsLostIsFoundOut) {
  hosts_[0]->line->lost_key = GateStateKey(kDirectory);
  hosts_[0]->line->lost_answers = 3;
  Status status = Start(0, Call(0, 1)).get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(hosts_[0]->line->lost_answers, 0);
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
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
    for (Pending* call : {&first, &second}) {
      Status status = call->get();
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
    EXPECT_EQ(asked, 2);
    EXPECT_EQ(KeysLeft(), 0U);
  }
}

TEST_F(RankGateErrorsTest, WhoRenamesIsNotWaitedForForEver) {
  hosts_[0]->gate = MakeGate(*hosts_[0], "a", milliseconds(1), milliseconds(0));
  BeginRename();
  EXPECT_TRUE(Has(Start(0, Call(1, 2)).get(), "a rank on host z was to rename it"));
  EXPECT_EQ(WaitingRanks(), 0U);
}

// A rank of an earlier try that never comes back keeps no gate up.
TEST_F(RankGateErrorsTest, WhoHasGoneDoesNotKeepAGate) {
  auto gone = Start(1, Call(1, 2));
  WaitForRanks(1);
  gone.Cancel();
  EXPECT_FALSE(gone.get().ok());
  EXPECT_TRUE(Has(Start(0, Call(0, 2, milliseconds(1))).get(), "rank 1 did not come"));
  EXPECT_TRUE(Start(0, Call(0, 1)).get().ok());
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
  has_final_name_ = false;  // mv FINAL TMP
  EXPECT_TRUE(Start(0, Call(0, 1)).get().ok());
  EXPECT_EQ(renames_, 2);
}

// As one whose last rank died with its host before it left.
TEST_F(RankGateErrorsTest, AGateThatWasDoneDoesNotSpeakForTheNextCommit) {
  Put(GateStateKey(kDirectory), DoneState().Encode());
  auto first = Start(0, Call(0, 2));
  Status status = Start(1, Call(1, 2)).get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(renames_, 1);
  Put(GateStateKey(kDirectory), DoneState().Encode());
  has_final_name_ = false;
  EXPECT_TRUE(Start(0, Call(0, 1)).get().ok()) << "nor against one with fewer ranks";
  EXPECT_EQ(renames_, 2);
  EXPECT_EQ(KeysLeft(), 0U);
}

TEST_F(RankGateErrorsTest, WhoseAnswerWasLostHearsThatItIsCommitted) {
  auto first = Start(0, Call(0, 2));
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  ASSERT_TRUE(first.get().ok());
  ASSERT_EQ(KeysLeft(), 0U);
  hosts_[1]->gate = MakeGate(*hosts_[1], "b");  // its daemon was killed
  EXPECT_TRUE(Start(1, Call(1, 2, milliseconds(1))).get().ok());
  EXPECT_EQ(renames_, 1);
  EXPECT_EQ(KeysLeft(), 0U);
}

TEST_F(RankGateErrorsTest, AClockThatIsAheadTakesDownNoGateInUse) {
  const InodeId used{18}, renaming{19}, unused{20};
  GateState old = DoneState();  // of 1970
  old.phase = GatePhase::kGathering;
  for (InodeId directory : {used, renaming, unused}) {
    Put(GateStateKey(directory), old.Encode());
    Put(GateRankKey(directory, 1, ""), GateVisitor{1, false, "c", 5, 6}.Encode());
  }
  Put(GateRankKey(used, 0, ""), GateVisitor{1, true, "c", 5, 5}.Encode());
  Put(GateElectedKey(renaming), GateVisitor{1, true, "c", 5, 5}.Encode());
  ASSERT_TRUE(Start(0, Call(0, 1)).get().ok());
  EXPECT_TRUE((*store_->Get(GateStateKey(used))).has_value());
  EXPECT_TRUE((*store_->Get(GateRankKey(used, 0, ""))).has_value());
  EXPECT_TRUE((*store_->Get(GateElectedKey(renaming))).has_value());
  EXPECT_TRUE((*store_->Get(GateStateKey(renaming))).has_value());
  EXPECT_EQ(KeysLeft(), 6U) << "the third gate is gone";
}

// Another call of this rank came between what the one that leaves saw and its leaving.
TEST_F(RankGateErrorsTest, WhoLeavesDoesNotTakeItsSuccessorAway) {
  const std::string key = GateRankKey(kDirectory, 0, "");
  const std::string successor = GateVisitor{1, true, "a", 6, 6}.Encode();
  Put(GateStateKey(kDirectory), DoneState().Encode());
  Put(key, GateVisitor{1, true, "a", 5, 5}.Encode());
  has_final_name_ = true;
  hosts_[0]->line->before_commit = [&] { Put(key, successor); };
  EXPECT_TRUE(Start(0, Call(0, 2)).get().ok());
  auto left = *store_->Get(key);
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->value, successor);
}

}  // namespace
}  // namespace cairnfs::control
