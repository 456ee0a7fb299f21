// Ranks meet, or do not.
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
    for (auto& call : calls) ExpectCommitted(std::move(call));
    EXPECT_EQ(renames_, 1);
    EXPECT_EQ(Ranks(), 0U);
  }
}

TEST_F(RankGateTest, WaitsForTheLast) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  EXPECT_FALSE(first.IsOverWithin(milliseconds(300)));
  EXPECT_EQ(renames_, 0);
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(first));
}

// A count reads the records of all: whoever has counted once only looks at the state.
TEST_F(RankGateTest, WhoWaitsDoesNotCountAtEachLook) {
  auto call = Start(0, Call(0, GateCall::kRanksMax));
  const Line& line = *hosts_[0]->line;
  ASSERT_TRUE(Eventually([&] { return line.counts > 0; }));
  for (int look = 0; look < 4; ++look) {
    const int before = line.reads;
    SetState(*State());  // the watch tells of it
    ASSERT_TRUE(Eventually([&] { return line.reads > before; }));
  }
  EXPECT_EQ(line.counts, 1);
}

TEST_F(RankGateTest, WhoseTimeIsUpCountsForALastOneThatHangs) {
  auto call = Start(0, Call(0, 2, milliseconds(20'000)));
  ASSERT_TRUE(Eventually([&] { return hosts_[0]->line->counts > 0; }));
  Put(RankKey(State()->try_id, 1), GateRank{"z", 5}.Encode());
  EXPECT_FALSE(call.IsOverWithin(milliseconds(10'000)));
  ExpectCommitted(std::move(call));
  EXPECT_EQ(renames_, 1);
}

// The last one came, and counted, between what this rank counted and its giving up.
TEST_F(RankGateTest, WhoseTimeIsUpEndsNoTryOfWhichAllHaveCome) {
  auto call = Start(0, Call(0, 2, milliseconds(20'000)));
  WaitForRanks(1);
  hosts_[0]->line->before_commit = [&] { BeginRename(); };
  EXPECT_FALSE(call.IsOverWithin(milliseconds(30'000)));
  ASSERT_EQ(State()->phase, GatePhase::kRenaming);
  RenamerGoes();
  ExpectCommitted(std::move(call));
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

TEST_F(RankGateTest, WhoIsLateByTheTimeoutBeginsTheNextTry) {
  FailATry();
  auto late = Start(1, Call(1, 2));
  WaitForRanks(1);
  EXPECT_FALSE(late.IsOverWithin(milliseconds(300)));
  ExpectCommitted(Start(0, Call(0, 2)));
  ExpectCommitted(std::move(late));
  EXPECT_EQ(renames_, 1);
}

TEST_F(RankGateTest, AFailedRenameFailsForAll) {
  auto fail = []() -> Status { return MakeError(ErrorCode::kIo, "the disk is on fire"); };
  auto first = Start(0, Call(0, 2), fail);
  auto second = Start(1, Call(1, 2), fail);
  EXPECT_TRUE(Has(first.get(), "the disk is on fire"));
  EXPECT_TRUE(Has(second.get(), "the disk is on fire"));
  ExpectThatTwoCommit();
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
  EXPECT_EQ(Ranks(), 0U);
}

// As above, with its host: the session goes, and with it the record of who renames. It may have renamed before.
TEST_F(RankGateTest, AnotherTakesOverFromADeadHost) {
  for (const bool has_renamed : {false, true}) {
    has_final_name_ = false;
    std::atomic<bool> is_dead{true};
    std::atomic<int> asked{0}, renamed{0};
    auto rename = [&]() -> Status {
      const bool dies = asked++ == 0;
      if (!has_final_name_ && (!dies || has_renamed)) ++renamed;
      has_final_name_ = renamed > 0;
      while (dies && is_dead) Clock::SleepFor(milliseconds(1));
      return {};
    };
    auto first = Start(0, Call(0, 2), rename);
    auto second = Start(1, Call(1, 2), rename);
    const std::shared_ptr<void> always_ends(nullptr, [&](void*) { is_dead = false; });
    ASSERT_TRUE(Eventually([&] { return asked > 0; }));
    const bool first_died = State()->renamer == GateRankName(0, "");
    LoseSession(first_died ? 0 : 1);
    ExpectCommitted(std::move(first_died ? second : first));
    EXPECT_EQ(asked, 2);
    EXPECT_EQ(renamed, 1);
    is_dead = false;
    ExpectCommitted(std::move(first_died ? first : second));  // the host was only taken for dead
  }
}

TEST_F(RankGateTest, WhoIsInterruptedDoesNotCount) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  first.Interrupt();
  EXPECT_EQ(first.get().error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(Ranks(), 0U);
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(300))).get(), "rank 0 did not come"));
}

// The others hear of it at once: who is left of a killed job does not mix with the next one.
TEST_F(RankGateTest, WhoIsInterruptedEndsTheTryOfAll) {
  auto first = Start(0, Call(0, 3)), second = Start(1, Call(1, 3));
  WaitForRanks(2);
  first.Interrupt();
  const Status told = second.get();
  EXPECT_TRUE(Has(told, "not committed: rank 0 on host a gave up: the commit was interrupted"));
  EXPECT_EQ(told.error().code, ErrorCode::kFailed);
  EXPECT_EQ(first.get().error().code, ErrorCode::kInterrupted);
  ExpectThatTwoCommit();
}

TEST_F(RankGateTest, ADeadHostsRankDoesNotCount) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  ASSERT_TRUE(store_->RevokeLease({}, hosts_[0]->lease).ok());
  EXPECT_TRUE(Has(Start(1, Call(1, 2, milliseconds(300))).get(), "rank 0 did not come"));
  EXPECT_FALSE(first.get().ok());
}

// Its host dies before it has counted, so nobody has seen all ranks.
TEST_F(RankGateTest, ALastRankThatDiesBeforeItHasCountedDoesNotCount) {
  auto first = Start(0, Call(0, 2));
  WaitForRanks(1);
  Line& line = *hosts_[1]->line;
  line.before_commit = [&] { line.after_read = [&] { LoseSession(1); }; };  // it has come, and looks
  EXPECT_FALSE(Start(1, Call(1, 2)).get().ok());
  EXPECT_EQ(renames_, 0);
  ExpectCommitted(Start(2, Call(1, 2)));  // it was started again on another host
  ExpectCommitted(std::move(first));
  EXPECT_EQ(renames_, 1);
}

// Nobody waits for ranks that never come: all hear of the one that wants something else, and may try again at once.
TEST_F(RankGateTest, ARankThatDoesNotAgreeEndsTheTryOfAll) {
  GateCall more = Call(1, 3), elsewhere = Call(1, 2), below_another = Call(1, 2);
  elsewhere.final_name = "step-6";
  below_another.final_parent = InodeId{2};
  for (const GateCall& other : {more, elsewhere, below_another}) {
    Pending first = Start(0, Call(0, 2));
    WaitForRanks(1);
    const Status refused = Start(1, other).get();
    EXPECT_TRUE(Has(refused, "the ranks do not agree: rank 1 commits to '" + other.final_name + "'"));
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    const Status told = first.get();
    EXPECT_TRUE(Has(told, "not committed: the ranks do not agree: rank 1 commits"));
    EXPECT_EQ(told.error().code, ErrorCode::kFailed);
  }
  EXPECT_EQ(renames_, 0);
  ExpectThatTwoCommit();
}

// It says nothing of a rename for which all had come.
TEST_F(RankGateTest, ARankThatDoesNotAgreeLeavesARenameAlone) {
  BeginRename();
  EXPECT_TRUE(Has(Start(0, Call(1, 3)).get(), "the ranks do not agree"));
  EXPECT_EQ(State()->phase, GatePhase::kRenaming);
}

TEST_F(RankGateTest, RefusesCallsThatMakeNoSense) {
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
  EXPECT_EQ(KeysLeft(), 0U);
}

// Also on another host: the process of the earlier call may be dead, and its host.
TEST_F(RankGateTest, ALaterCallTakesThePlaceOfAnEarlierOne) {
  for (unsigned host : {0U, 1U}) {
    has_final_name_ = false;
    auto earlier = Start(0, Call(0, 2));
    WaitForRanks(1);
    auto later = Start(host, Call(0, 2));
    const Status replaced = earlier.get();
    EXPECT_TRUE(Has(replaced, "another call as rank 0, on host "));
    EXPECT_EQ(replaced.error().code, ErrorCode::kAlreadyExists);
    EXPECT_EQ(Ranks(), 1U);
    ExpectCommitted(Start(2, Call(1, 2)));
    ExpectCommitted(std::move(later));
  }
  EXPECT_EQ(renames_, 2);
}

// The daemon learns a moment later that the process of the first call is gone.
TEST_F(RankGateTest, ARankThatWasKilledMayCallAgainAtOnce) {
  auto killed = Start(0, Call(0, 2));
  WaitForRanks(1);
  const std::string key = RankKey(State()->try_id, 0);
  const uint64_t before = (*store_->Get({}, key))->revision;
  auto again = Start(0, Call(0, 2));
  ASSERT_TRUE(Eventually([&] { return (*store_->Get({}, key))->revision != before; }));
  killed.Interrupt();
  EXPECT_FALSE(killed.get().ok());
  ExpectCommitted(Start(1, Call(1, 2)));
  ExpectCommitted(std::move(again));
}

TEST_F(RankGateTest, RanksMayHaveNames) {
  auto named = [](const std::string& id) {
    GateCall call = Call(0, 2, milliseconds(60'000));
    call.rank.reset();
    call.id = id;
    return call;
  };
  auto first = Start(0, named("trainer"));
  ExpectCommitted(Start(1, named("logger")));
  ExpectCommitted(std::move(first));
  has_final_name_ = false;
  GateCall alone = named("trainer");
  alone.timeout = milliseconds(200);
  EXPECT_TRUE(Has(Start(0, alone).get(), "1 rank without a number did not come within 200 ms"));
}

// A gate of a dead job does not hold up another job.
TEST_F(RankGateTest, ADeadJobsGateIsTakenOver) {
  auto first = Start(0, Call(0, 4));
  WaitForRanks(1);
  ASSERT_TRUE(store_->RevokeLease({}, hosts_[0]->lease).ok());
  EXPECT_FALSE(first.get().ok());
  ASSERT_EQ(State()->ranks, 4U);
  ExpectThatTwoCommit();
}

// The state is looked at first, and then who waits: by then it may be a rank of the same job.
TEST_F(RankGateTest, RanksThatTakeADeadJobsGateOverAtOnceMeet) {
  SetState(StateOf(GatePhase::kGathering));
  auto of_three = [](unsigned rank) { return Call(rank, 3); };
  Pending others[2];
  hosts_[2]->line->before_commit = [&] {
    for (unsigned rank : {0U, 1U}) others[rank] = Start(rank, of_three(rank));
    WaitForRanks(2);
  };
  ExpectCommitted(Start(2, of_three(2)));
  for (Pending& other : others) ExpectCommitted(std::move(other));
  EXPECT_EQ(renames_, 1);
}

// A rank of the dead job was only slow. It comes while the gate is being taken over: then the two do not agree.
TEST_F(RankGateTest, AGateIsNotTakenFromARankThatComes) {
  SetState(StateOf(GatePhase::kGathering));
  Pending slow;
  hosts_[2]->line->before_commit = [&] {
    slow = Start(0, Call(0, 2));
    WaitForRanks(1);
  };
  EXPECT_TRUE(Has(Start(2, Call(2, 3)).get(), "the ranks do not agree"));
  EXPECT_TRUE(Has(slow.get(), "the ranks do not agree"));
}

// A rank whose answer was lost asks again, and hears the same.
TEST_F(RankGateTest, WhoseAnswerWasLostHearsThatItIsCommitted) {
  ExpectThatTwoCommit();
  hosts_[1]->gate = MakeGate(*hosts_[1], "b");  // its daemon was killed
  EXPECT_TRUE(Start(1, Call(1, 2, milliseconds(1))).get().ok());
  EXPECT_EQ(renames_, 1);
}

TEST(RankGateRecordsTest, RefuseEveryTruncation) {
  GateState state;
  state.final_name = "x";
  state.message = "why";
  const std::string text = state.Encode();
  ASSERT_TRUE(DecodeGateState(text).ok());
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(DecodeGateState(text.substr(0, size)).ok());
  const std::string rank = GateRank{"host", 2}.Encode();
  ASSERT_TRUE(DecodeGateRank(rank).ok());
  for (size_t size = 0; size < rank.size(); ++size) EXPECT_FALSE(DecodeGateRank(rank.substr(0, size)).ok());
}

}  // namespace
}  // namespace cairnfs::control
