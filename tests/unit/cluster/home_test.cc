// Claims at a home: one brings, the others wait and are told.
#include "cluster/home.h"

#include <gtest/gtest.h>

#include <future>

#include "../../support/eventually.h"
#include "../store/hooked_engine.h"
#include "base/clock.h"
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

using Kind = HasAnswer::Kind;

class HomeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint8_t i = 0; i < 3; ++i) {
      ids_[i].bytes.fill(static_cast<std::byte>(i + 1));
      NodeInfo info;
      info.id = ids_[i];
      info.state = NodeState::kUp;
      info.session = 1;
      cluster_.Add(info);
    }
    auto local = store::LocalChunkStore::Open(node_.disk, index_engine_, *node_.pool, {});
    ASSERT_OK(local);
    node_.local = std::move(local).value();
    membership_ = std::make_unique<FakeMembership>(cluster_, ids_[0]);
    commit_ = std::make_unique<GroupCommit>(*node_.local, engine_);
    home_ = std::make_unique<HomeClaims>(
        *commit_, *membership_, [](const std::function<void()>& task) { task(); }, kClaimTimeMax);
  }
  void TearDown() override {
    home_.reset();
    commit_.reset();
    node_.local.reset();  // before its engine
  }
  void Store(const TestChunk& chunk) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    ASSERT_OK(commit_->Put(chunk.digest, {&slice, 1}, {}));
    commit_->SetHolders(chunk.digest, {ids_[0], ids_[1]});
  }
  Kind Ask(const NodeId& caller) { return home_->Ask({chunk_.digest}, caller)[0].kind; }

  NodeId ids_[3];
  FakeCluster cluster_;
  TestNode node_{64 * kMiB};
  store::HookedEngine engine_{*node_.engine};        // in which the lists of holders are
  store::HookedEngine index_engine_{*node_.engine};  // in which the store looks up chunks
  std::unique_ptr<FakeMembership> membership_;
  std::unique_ptr<GroupCommit> commit_;
  std::unique_ptr<HomeClaims> home_;
  TestChunk chunk_ = MakeChunk(1, 10'000);
};

TEST_F(HomeTest, OneBringsAndTheOthersWait) {
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  EXPECT_EQ(Ask(ids_[2]), Kind::kWait);
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);  // the same asks again: its answer may have been lost
  Store(chunk_);
  EXPECT_EQ(Ask(ids_[2]), Kind::kWait);  // not before the claim ends
  home_->EndClaim(chunk_.digest);
  EXPECT_EQ(Ask(ids_[2]), Kind::kKnown);  // here, and not synced: the asker has it confirmed
  ASSERT_OK(commit_->CommitAndWait());
  const auto answers = home_->Ask({chunk_.digest}, ids_[2]);
  EXPECT_EQ(answers[0].kind, Kind::kKnownHere);
  EXPECT_EQ(answers[0].holders.size(), 2u);
}

// As one that a host had before it joined a cluster, or whose list was not written yet at a crash.
TEST_F(HomeTest, AChunkWithoutAListIsConfirmedBeforeOthersCountOnIt) {
  io::Slice slice;
  slice.data = reinterpret_cast<const std::byte*>(chunk_.bytes.data());
  slice.size = chunk_.bytes.size();
  ASSERT_OK(commit_->Put(chunk_.digest, {&slice, 1}, {}));
  ASSERT_OK(commit_->CommitAndWait());
  EXPECT_EQ(Ask(ids_[1]), Kind::kKnown);
  EXPECT_EQ(Ask(ids_[2]), Kind::kKnown);
  EXPECT_TRUE(commit_->SetHoldersIfNone(chunk_.digest, {ids_[0]})) << "the list is not durable yet";
  ASSERT_OK(commit_->CommitAndWait());
  EXPECT_FALSE(commit_->SetHoldersIfNone(chunk_.digest, {ids_[0]}));
  EXPECT_EQ(Ask(ids_[1]), Kind::kKnownHere);
}

// Another asks, brings the chunk and ends its claim between this one's look at the claims and its look at what is here,
// or right after it.
TEST_F(HomeTest, AChunkThatComesWhileItIsLookedUpIsNotBroughtAgain) {
  auto come = [&] {
    EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
    Store(chunk_);
    ASSERT_OK(commit_->CommitAndWait());
    home_->EndClaim(chunk_.digest);
  };
  for (std::function<void()>* hook : {&engine_.before_get, &engine_.after_get}) {
    *hook = come;
    const auto answers = home_->Ask({chunk_.digest}, ids_[2]);
    EXPECT_EQ(answers[0].kind, Kind::kKnownHere);
    EXPECT_EQ(answers[0].holders.size(), 2u);
    EXPECT_EQ(Ask(ids_[0]), Kind::kKnownHere) << "nobody has a claim on it";
    chunk_ = MakeChunk(2, 10'000);
  }
}

TEST_F(HomeTest, AChunkThatIsOnItsWayIsWaitedForThoughItsListIsHere) {
  engine_.before_get = [&] {
    EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
    commit_->SetHolders(chunk_.digest, {ids_[0], ids_[1]});
    ASSERT_OK(commit_->CommitAndWait());
  };
  EXPECT_EQ(Ask(ids_[2]), Kind::kWait);
}

// The home itself brings it, so that it is here before it has come to the other that its list names: who would be told
// of both now would miss the other's copy, and store one more.
TEST_F(HomeTest, AChunkThatIsHereAndOnItsWayToOthersIsWaitedFor) {
  index_engine_.before_get = [&] {
    EXPECT_EQ(Ask(ids_[0]), Kind::kClaim);
    Store(chunk_);
    ASSERT_OK(commit_->CommitAndWait());
  };
  EXPECT_EQ(Ask(ids_[2]), Kind::kWait);
  home_->EndClaim(chunk_.digest);
  EXPECT_EQ(Ask(ids_[2]), Kind::kKnownHere);
}

// Two writers of one host ask at once, and the home has the chunk already while its other holder has not: the second's
// question must not end the claim of the first, or who asks next would be told of both.
TEST_F(HomeTest, AQuestionEndsNoClaimOfAnotherQuestion) {
  const TestChunk other = MakeChunk(2, 100);
  engine_.before_get = [&] {
    EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
    home_->Ask({other.digest}, ids_[2]);
    home_->EndClaim(other.digest);  // a claim ended meanwhile, so what is found is looked up again
  };
  engine_.after_get = [&] {
    Store(chunk_);
    ASSERT_OK(commit_->CommitAndWait());
  };
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  EXPECT_EQ(Ask(ids_[2]), Kind::kWait);
}

TEST_F(HomeTest, AClaimEndsWithTheSession) {
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  cluster_.SetState(ids_[1], NodeState::kDown);
  EXPECT_EQ(Ask(ids_[2]), Kind::kClaim);
  EXPECT_EQ(Ask(ids_[0]), Kind::kWait);
  cluster_.Edit(ids_[2], [](NodeInfo& node) { node.session++; });  // restarted: it forgot
  EXPECT_EQ(Ask(ids_[0]), Kind::kClaim);
}

TEST_F(HomeTest, AHeldAnswerComesWhenTheChunkHasCome) {
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  std::promise<std::vector<HasAnswer>> promise;
  auto future = promise.get_future();
  home_->AskAndHold({chunk_.digest}, ids_[2], [&](std::vector<HasAnswer> answers) { promise.set_value(answers); });
  home_->Tick();
  EXPECT_FALSE(IsReadyWithin(future, std::chrono::milliseconds(30)));
  Store(chunk_);
  ASSERT_OK(commit_->CommitAndWait());
  home_->EndClaim(chunk_.digest);
  while (!IsReadyWithin(future, std::chrono::milliseconds(5))) home_->Tick();
  EXPECT_EQ(future.get()[0].kind, Kind::kKnownHere);
}

TEST_F(HomeTest, AHeldAskerGetsTheClaimOfANodeThatWentDown) {
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  std::promise<std::vector<HasAnswer>> promise;
  auto future = promise.get_future();
  home_->AskAndHold({chunk_.digest}, ids_[2], [&](std::vector<HasAnswer> answers) { promise.set_value(answers); });
  cluster_.SetState(ids_[1], NodeState::kDown);
  while (!IsReadyWithin(future, std::chrono::milliseconds(5))) home_->Tick();
  EXPECT_EQ(future.get()[0].kind, Kind::kClaim);
}

TEST_F(HomeTest, ANodeThatAsksWithoutEndCostsBoundedMemory) {
  constexpr size_t kHeldAtMost = 64;
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  size_t answered = 0;
  for (size_t i = 0; i < kHeldAtMost + 5; ++i) {
    home_->AskAndHold({chunk_.digest}, ids_[2], [&](const std::vector<HasAnswer>&) { ++answered; });
  }
  EXPECT_EQ(answered, 5u);
  home_->Close();
  EXPECT_EQ(answered, kHeldAtMost + 5);
}

// As when all hosts of a job save the same.
TEST_F(HomeTest, ManyWhoWaitForTheSameAreEachAnsweredOnce) {
  constexpr size_t kHosts = 300;
  std::vector<TestChunk> chunks = MakeChunks(10, 40, 100);
  std::vector<Digest> digests;
  for (const TestChunk& chunk : chunks) digests.push_back(chunk.digest);
  digests.push_back(digests.front());  // somebody asks for one twice
  home_->Ask(digests, ids_[1]);
  std::vector<unsigned> answered(kHosts), known(kHosts);
  for (size_t round = 1; round <= 2; ++round) {
    for (size_t i = 0; i < kHosts; ++i) {
      NodeId host;
      host.bytes.fill(std::byte{0x77});
      host.bytes[0] = static_cast<std::byte>(i / 256);
      host.bytes[1] = static_cast<std::byte>(i % 256);
      home_->AskAndHold(digests, host, [&, i](const std::vector<HasAnswer>& answers) {
        ++answered[i];
        known[i] =
            static_cast<unsigned>(std::count_if(answers.begin(), answers.end(), std::mem_fn(&HasAnswer::is_known)));
      });
    }
    if (round == 2) continue;  // by now they are known, and nobody is held
    EXPECT_EQ(std::count(answered.begin(), answered.end(), 0u), static_cast<std::ptrdiff_t>(kHosts));
    for (const TestChunk& chunk : chunks) Store(chunk);
    for (const TestChunk& chunk : chunks) home_->EndClaim(chunk.digest);
    while (std::count(answered.begin(), answered.end(), 0u) > 0) {
      home_->Tick();
      Clock::SleepFor(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(answered, std::vector<unsigned>(kHosts, 2));
  EXPECT_EQ(known, std::vector<unsigned>(kHosts, static_cast<unsigned>(digests.size())));
}

// Once they are answered, as many more may wait.
TEST_F(HomeTest, WhoWasAnsweredMayWaitAgain) {
  constexpr size_t kHeldAtMost = 64;
  for (int round = 0; round < 3; ++round) {
    const TestChunk chunk = MakeChunk(20 + static_cast<uint64_t>(round), 100);
    EXPECT_EQ(home_->Ask({chunk.digest}, ids_[1])[0].kind, Kind::kClaim);
    size_t answered = 0;
    for (size_t i = 0; i < kHeldAtMost; ++i) {
      home_->AskAndHold({chunk.digest}, ids_[2], [&](const std::vector<HasAnswer>&) { ++answered; });
    }
    EXPECT_EQ(answered, 0u);
    home_->EndClaim(chunk.digest);
    while (answered < kHeldAtMost) {
      home_->Tick();
      Clock::SleepFor(std::chrono::milliseconds(1));
    }
  }
}

TEST_F(HomeTest, CloseAnswersAll) {
  EXPECT_EQ(Ask(ids_[1]), Kind::kClaim);
  bool answered = false;
  home_->AskAndHold({chunk_.digest}, ids_[2], [&](const std::vector<HasAnswer>&) { answered = true; });
  home_->Close();
  EXPECT_TRUE(answered);
}

TEST_F(HomeTest, ListsThatNobodyWaitedForAreKept) {
  Store(chunk_);
  home_.reset();
  commit_.reset();
  auto holders = ReadHolders(*node_.engine, chunk_.digest);
  ASSERT_OK(holders);
  EXPECT_EQ(*holders, (Holders{ids_[0], ids_[1]}));
}

TEST_F(HomeTest, HoldersThatAreOutAreNotNamed) {
  Store(chunk_);
  ASSERT_OK(commit_->CommitAndWait());
  cluster_.SetState(ids_[1], NodeState::kOut);
  EXPECT_EQ(home_->Ask({chunk_.digest}, ids_[2])[0].holders, Holders{ids_[0]});
}

}  // namespace
}  // namespace cairnfs::cluster
