#include "../../support/eventually.h"
#include "base/clock.h"
#include "rank_gate_fixture.h"

namespace cairnfs::control {
namespace {

TEST_F(RankGateTest, RenamesOnceForAll) {
  for (unsigned ranks : {1U, 3U, 24U}) {
    renames_ = 0;
    has_final_name_ = false;
    std::vector<Pending> calls;
    for (unsigned rank = 0; rank < ranks; ++rank) calls.push_back(Start(rank % 3, Call(rank, ranks)));
    for (auto& call : calls) {
      Status status = call.get();
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
    EXPECT_EQ(renames_, 1);
    EXPECT_EQ(KeysLeft(), 0U);
  }
}

TEST_F(RankGateTest, WaitsForTheLast) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  EXPECT_FALSE(first.IsOverWithin(milliseconds(300)));
  EXPECT_EQ(renames_, 0);
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(first.get().ok());
}

// A count reads the records of all: whoever has counted once looks at the state, and counts rarely.
TEST_F(RankGateTest, WhoWaitsDoesNotCountAtEachLook) {
  auto call = Start(0, Call(0, GateCall::kRanksMax));
  const Line& line = *hosts_[0]->line;
  const auto looks = [&] { return line.reads - line.counts; };
  ASSERT_TRUE(Eventually([&] { return line.counts > 0; }));
  for (int look = 0; look < 4; ++look) {
    const int before = looks();
    Put(GateElectedKey(kDirectory), GateVisitor{1, false, "z", 5, 5}.Encode());  // the watch tells of it
    ASSERT_TRUE(Eventually([&] { return looks() > before; }));
  }
  EXPECT_LE(line.counts, 2);
}

TEST_F(RankGateTest, WhoWaitsCountsForALastOneThatHangs) {
  auto call = Start(0, Call(0, 2));
  ASSERT_TRUE(Eventually([&] { return hosts_[0]->line->counts > 0; }));
  Put(GateRankKey(kDirectory, 1, ""), GateVisitor{1, true, "z", 5, 5}.Encode());
  const auto make_it_look = [&] {
    const auto state = *store_->Get(GateStateKey(kDirectory));
    if (!state || DecodeGateState(state->value)->phase != GatePhase::kGathering) return;
    kv::Transaction same;
    same.IfRevision(state->key, state->revision).Put(state->key, state->value);
    static_cast<void>(store_->Commit(same).ok());  // unless it acts
  };
  ASSERT_TRUE(Eventually([&] {
    make_it_look();
    return call.IsOverWithin(milliseconds(20));
  }));
  EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateTest, NamesThoseWhoDoNotCome) {
  std::vector<Pending> calls;
  for (unsigned rank : {1U, 4U}) calls.push_back(Start(1, Call(rank, 6)));
  WaitForRanks(2);
  calls.push_back(Start(0, Call(0, 6, milliseconds(500))));
  for (auto& call : calls) {
    Status status = call.get();
    EXPECT_TRUE(Has(status, "ranks 2-3, 5 did not come within 500 ms (3 of 6 ranks are missing)"))
        << status.error().message;
    EXPECT_EQ(status.error().code, ErrorCode::kFailed);
  }
  EXPECT_EQ(renames_, 0);
}

TEST_F(RankGateTest, TheLateOneLearnsItToo_AndAllMayTryAgain) {
  auto first = Start(0, Call(0, 2, milliseconds(300)));
  EXPECT_TRUE(Has(first.get(), "rank 1 did not come"));
  EXPECT_TRUE(Has(Start(1, Call(1, 2)).get(), "rank 1 came too late"));
  auto again = Start(0, Call(0, 2));
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(again.get().ok());
  EXPECT_EQ(renames_, 1);
}

// Its record went with the session, so that it looks as if it came for the first time.
TEST_F(RankGateTest, WhoLostItsSessionWhileItWaitedMayBeTheFirstToTryAgain) {
  auto lost = Start(1, Call(1, 2));
  WaitForRanks(1);
  LoseSession(1);
  EXPECT_TRUE(Has(lost.get(), "lost its session"));
  FailATry();
  ExpectThatRank1Begins(1, 2);
}

TEST_F(RankGateTest, WhoWasLateIsNotToldSoOfTheNextTry) {
  FailATry();
  EXPECT_TRUE(Has(Start(1, Call(1, 2)).get(), "rank 1 came too late"));
  FailATry();
  ExpectThatRank1Begins(2, 3);  // by its record, also on another host
}

TEST_F(RankGateTest, WhoWasLateAndLostItsSessionIsNotToldSoOfTheNextTry) {
  FailATry();
  EXPECT_TRUE(Has(Start(1, Call(1, 2)).get(), "rank 1 came too late"));
  LoseSession(1);
  FailATry();
  ExpectThatRank1Begins(1, 3);
}

TEST_F(RankGateTest, AFailedRenameFailsForAll) {
  auto fail = []() -> Status { return MakeError(ErrorCode::kIo, "the disk is on fire"); };
  auto first = Start(0, Call(0, 2), fail);
  auto second = Start(1, Call(1, 2), fail);
  EXPECT_TRUE(Has(first.get(), "the disk is on fire"));
  EXPECT_TRUE(Has(second.get(), "the disk is on fire"));
  auto again = Start(0, Call(0, 2));
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(again.get().ok());
}

// Whoever renames is killed: the others do it.
TEST_F(RankGateTest, AnotherTakesOver) {
  std::atomic<int> asked{0};
  auto dies_first = [&]() -> Status {
    if (asked++ == 0) return MakeError(ErrorCode::kInterrupted, "killed");
    return {};
  };
  std::vector<Pending> calls;
  for (unsigned rank = 0; rank < 3; ++rank) calls.push_back(Start(rank, Call(rank, 3), dies_first));
  int failed = 0;
  for (auto& call : calls) failed += call.get().ok() ? 0 : 1;
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(KeysLeft(), 0U);
}

// As above, with its host: the session goes, and with it the record of who renames.
TEST_F(RankGateTest, AnotherTakesOverFromADeadHost) {
  std::atomic<bool> is_dead{true};
  std::atomic<int> asked{0};
  auto rename = [&]() -> Status {
    if (asked++ > 0) return {};
    while (is_dead) Clock::SleepFor(milliseconds(1));
    return {};
  };
  auto first = Start(0, Call(0, 2), rename);
  auto second = Start(1, Call(1, 2), rename);
  const std::shared_ptr<void> always_ends(nullptr, [&](void*) { is_dead = false; });
  ASSERT_TRUE(Eventually([&] { return asked > 0; }));
  auto elected = DecodeGateVisitor((*store_->Get(GateElectedKey(kDirectory)))->value);
  ASSERT_TRUE(elected.ok());
  const unsigned dead_host = elected->host == "a" ? 0 : 1;
  ASSERT_TRUE(store_->RevokeLease(hosts_[dead_host]->lease).ok());
  EXPECT_TRUE((dead_host == 0 ? second : first).get().ok());
  EXPECT_EQ(asked, 2);
  is_dead = false;
  (dead_host == 0 ? first : second).wait();
}

TEST_F(RankGateTest, WhoIsInterruptedDoesNotCount) {
  std::atomic<bool> interrupted{false};
  auto first = std::async(std::launch::async, [&] {
    auto cancelled = [&] { return interrupted.load(); };
    return hosts_[0]->gate->Commit(Call(0, 2), CallerThat([] { return Status(); }, cancelled));
  });
  WaitForRanks(1);
  interrupted = true;
  EXPECT_EQ(first.get().error().code, ErrorCode::kInterrupted);
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(300))).get(), "rank 0 did not come"));
}

TEST_F(RankGateTest, ADeadHostsRankDoesNotCount) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  ASSERT_TRUE(store_->RevokeLease(hosts_[0]->lease).ok());
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(300))).get(), "rank 0 did not come"));
  EXPECT_FALSE(first.get().ok());
}

// Nobody waits for ranks that never come: all hear of the one that wants something else, and may try again at once.
TEST_F(RankGateTest, ARankThatDoesNotAgreeEndsTheTryOfAll) {
  GateCall more = Call(1, 3), elsewhere = Call(1, 2);
  elsewhere.final_name = "step-6";
  uint32_t generation = 0;
  auto start_first = [&] {
    Pending first = Start(0, Call(0, 2));
    ++generation;  // the record of the try before is there yet
    EXPECT_TRUE(Eventually([&] { return KeysLeft() > 0 && Generation() == generation; }));
    return first;
  };
  for (const GateCall& other : {more, elsewhere}) {
    Pending first = start_first();
    const Status refused = Start(1, other).get();
    EXPECT_TRUE(Has(refused, "the ranks do not agree: rank 1 commits to '" + other.final_name + "'"));
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(first.IsOverWithin(std::chrono::seconds(30)));
    const Status told = first.get();
    EXPECT_TRUE(Has(told, "not committed: the ranks do not agree: rank 1 commits"));
    EXPECT_EQ(told.error().code, ErrorCode::kFailed);
  }
  EXPECT_EQ(renames_, 0);
  Pending first = start_first();
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(first.get().ok());
}

// It says nothing of a rename for which all had come.
TEST_F(RankGateTest, ARankThatDoesNotAgreeLeavesARenameAlone) {
  BeginRename();
  EXPECT_TRUE(Has(Start(0, Call(1, 3)).get(), "the ranks do not agree"));
  EXPECT_EQ(DecodeGateState((*store_->Get(GateStateKey(kDirectory)))->value)->phase, GatePhase::kRenaming);
}

TEST_F(RankGateTest, RefusesCallsThatMakeNoSense) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  EXPECT_TRUE(Has(Start(1, Call(0, 2)).get(), "rank 0 waits already, on host a"));
  EXPECT_TRUE(Has(Start(1, Call(2, 2)).get(), "numbered from 0 to 1"));
  EXPECT_TRUE(Has(Start(1, Call(0, 0)).get(), "must lie between 1 and"));
  GateCall long_name = Call(1, 2);
  long_name.final_name = std::string(256, 'x');
  EXPECT_TRUE(Has(Start(1, long_name).get(), "the final name may have 255 bytes, not 256"));
  GateCall long_id = Call(1, 2);
  long_id.rank.reset();
  long_id.id = std::string(256, 'x');
  EXPECT_TRUE(Has(Start(1, long_id).get(), "a rank's name may have 255 bytes, not 256"));
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds::max())).get(), "the timeout must be at most"));
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(-1))).get(), "the timeout must be at most"));
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(first.get().ok());
}

TEST_F(RankGateTest, TwoOfOneHostMayNotBeTheSameRank) {
  hosts_[0]->gate = MakeGate(*hosts_[0], "a", milliseconds(1));
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  EXPECT_TRUE(Has(Start(0, Call(0, 2)).get(), "rank 0 waits already, on host a"));
  ASSERT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(first.get().ok());
}

// The daemon learns a moment later that the process of the first call is gone: once the second one looks again.
TEST_F(RankGateTest, ARankThatWasKilledMayCallAgainAtOnce) {
  hosts_[0]->gate = MakeGate(*hosts_[0], "a", std::chrono::seconds(60));
  auto killed = Start(0, Call(0, 2));
  WaitForRanks(1);
  auto again = std::async(std::launch::async, [&] {
    auto looks_again = [&] {
      killed.Cancel();
      return false;
    };
    return hosts_[0]->gate->Commit(Call(0, 2), CallerThat([] { return Status(); }, looks_again));
  });
  auto is_refused = [&] { return IsReadyWithin(again, milliseconds(0)); };
  ASSERT_TRUE(Eventually([&] { return is_refused() || killed.IsOverWithin(milliseconds(0)); }));
  ASSERT_FALSE(is_refused());
  EXPECT_EQ(killed.get().error().code, ErrorCode::kInterrupted);
  EXPECT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_TRUE(again.get().ok());
}

// All others come before the daemon learns it: then the gate is gone when the second call looks again.
TEST_F(RankGateTest, ARankThatWasKilledHearsWhatItsFirstCallWouldHaveTold) {
  hosts_[0]->gate = MakeGate(*hosts_[0], "a", std::chrono::seconds(60));
  auto killed = Start(0, Call(0, 2));
  WaitForRanks(1);
  bool has_looked = false;
  auto looks_again = [&] {
    if (!std::exchange(has_looked, true)) {
      EXPECT_TRUE(Start(1, Call(1, 2)).get().ok());
      killed.wait();
      EXPECT_EQ(KeysLeft(), 0U);
    }
    return false;
  };
  Status again = hosts_[0]->gate->Commit(Call(0, 2), CallerThat([] { return Status(); }, looks_again));
  ASSERT_TRUE(has_looked);
  EXPECT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(killed.get().ok());
  EXPECT_EQ(KeysLeft(), 0U);
}

TEST_F(RankGateTest, RanksMayHaveNames) {
  auto named = [](const std::string& id) {
    GateCall call = Call(0, 2, milliseconds(60'000));
    call.rank.reset();
    call.id = id;
    return call;
  };
  auto first = Start(0, named("trainer"));
  ASSERT_TRUE(Start(1, named("logger")).get().ok());
  EXPECT_TRUE(first.get().ok());
  has_final_name_ = false;
  GateCall alone = named("trainer");
  alone.timeout = milliseconds(200);
  EXPECT_TRUE(Has(Start(0, alone).get(), "1 rank without a number did not come within 200 ms"));
}

// A gate at which the ranks of a dead job are still written down does not hold up another job.
TEST_F(RankGateTest, ADeadJobsGateIsTakenOver) {
  auto first = Start(0, Call(0, 4));
  WaitForRanks(1);
  ASSERT_TRUE(store_->RevokeLease(hosts_[0]->lease).ok());
  EXPECT_FALSE(first.get().ok());
  auto other = Start(1, Call(0, 2));
  ASSERT_TRUE(Start(2, Call(1, 2)).get().ok());
  EXPECT_TRUE(other.get().ok());
}

// The state is looked at first, and then who waits: by then it may be a rank of the same job.
TEST_F(RankGateTest, RanksThatTakeADeadJobsGateOverAtOnceMeet) {
  auto dead = Start(0, Call(0, 4));
  WaitForRanks(1);
  ASSERT_TRUE(store_->RevokeLease(hosts_[0]->lease).ok());
  EXPECT_FALSE(dead.get().ok());
  Pending other;
  hosts_[2]->line->after_read = [&] {
    other = Start(1, Call(0, 2));
    WaitForRanks(1);
  };
  Status status = Start(2, Call(1, 2)).get();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(other.get().ok());
}

// What a rank says that is interrupted, as its session has ended, is not written over the record of its successor.
TEST_F(RankGateTest, WhoIsInterruptedDoesNotTakeItsSuccessorAway) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  Pending successor;
  hosts_[0]->line->before_commit = [&, lost = hosts_[0]->lease.load()] {
    EXPECT_TRUE(store_->RevokeLease(lost).ok());
    successor = Start(1, Call(0, 2));
    WaitForRanks(1);
  };
  hosts_[0]->lease = *store_->GrantLease(std::chrono::minutes(10));
  first.Cancel();
  EXPECT_EQ(first.get().error().code, ErrorCode::kInterrupted);
  ASSERT_EQ(WaitingRanks(), 1U);
  Status status = Start(2, Call(1, 2)).get();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(successor.get().ok());
}

// A rank whose answer was lost asks again, and hears the same.
TEST_F(RankGateTest, TheOutcomeStaysUntilAllHaveHeardIt) {
  ASSERT_TRUE(store_->RevokeLease(hosts_[0]->lease).ok());
  hosts_[0]->lease = *store_->GrantLease(std::chrono::minutes(10));
  kv::Transaction transaction;
  transaction.Put(GateStateKey(kDirectory), DoneState().Encode());
  transaction.Put(GateRankKey(kDirectory, 1, ""), GateVisitor{1, true, "b", 5, 5}.Encode());
  ASSERT_TRUE(store_->Commit(transaction).ok());
  has_final_name_ = true;
  EXPECT_TRUE(Start(0, Call(0, 2)).get().ok());
  EXPECT_TRUE(Start(1, Call(1, 2)).get().ok());
  EXPECT_EQ(renames_, 0);
  EXPECT_EQ(KeysLeft(), 0U);
}

// Whoever leaves last takes the gate down; where two do, the second one must not take down that of a job that follows.
TEST_F(RankGateTest, WhoLeavesDoesNotTakeDownTheNextGate) {
  kv::Transaction done;
  ASSERT_TRUE(store_->Commit(done.Put(GateStateKey(kDirectory), DoneState().Encode())).ok());
  has_final_name_ = true;
  Pending next;
  hosts_[0]->line->before_commit = [&] {
    has_final_name_ = false;
    kv::Transaction taken_down;
    EXPECT_TRUE(store_->Commit(taken_down.Delete(GateStateKey(kDirectory))).ok());
    next = Start(2, Call(0, 2));
    WaitForRanks(1);
  };
  ASSERT_TRUE(Start(0, Call(0, 2)).get().ok());
  EXPECT_EQ(WaitingRanks(), 1U);
  Status status = Start(1, Call(1, 2)).get();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(next.get().ok());
  EXPECT_EQ(renames_, 1);
}

TEST(RankGateRecordsTest, RefuseEveryTruncation) {
  GateState state;
  state.final_name = "x";
  state.message = "why";
  const std::string text = state.Encode();
  ASSERT_TRUE(DecodeGateState(text).ok());
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(DecodeGateState(text.substr(0, size)).ok());
  const std::string visitor = GateVisitor{1, true, "host", 2, 3}.Encode();
  ASSERT_TRUE(DecodeGateVisitor(visitor).ok());
  for (size_t size = 0; size < visitor.size(); ++size) EXPECT_FALSE(DecodeGateVisitor(visitor.substr(0, size)).ok());
}

}  // namespace
}  // namespace cairnfs::control
