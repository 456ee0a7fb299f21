// The state machine of a chunk's copies, driven without threads: what is done next after each event.
#include "chunk_copies_fixture.h"

namespace cairnfs::cluster {
namespace {

TEST_F(ChunkCopiesTest, ANewChunkIsStoredHereAndOnItsHome) {
  const auto chunk = MakeReplicating();
  EXPECT_EQ(chunk->announced(), (Holders{home_, self_}));
  EXPECT_TRUE(chunk->OnStored(situation_, StoreResult::kStored).commit);
  EXPECT_EQ(chunk->local(), Local::kStored);
  const Actions actions = chunk->OnSent(situation_, Of(home_), SendResult::kDurable);
  EXPECT_TRUE(chunk->is_done());
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
  EXPECT_TRUE(chunk->end().was_new);
  EXPECT_TRUE(actions.tell.empty()) << "the list went with the chunk, and the home has ended the claim";
}

TEST_F(ChunkCopiesTest, WhereTheHomeIsFullItIsToldWhoHasTheChunk) {
  SetFull(home_);
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  EXPECT_EQ(AnswerOfHome(*chunk, Kind::kClaim).send, Holders{second_});
  chunk->OnStored(situation_, StoreResult::kStored);
  const Actions actions = chunk->OnSent(situation_, Of(second_), SendResult::kDurable);
  EXPECT_EQ(actions.tell, Holders{home_});
  EXPECT_EQ(actions.holders, (Holders{second_, self_}));
}

TEST_F(ChunkCopiesTest, AKnownChunkThatIsHereTooIsDone) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  const Actions actions =
      chunk->OnHomeAnswer(situation_, Of(home_), {Kind::kKnownHere, {home_, self_}}, /*is_here=*/true);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
  EXPECT_FALSE(chunk->end().was_new);
  EXPECT_FALSE(actions.store);
  EXPECT_TRUE(actions.tell.empty());
  EXPECT_TRUE(actions.commit) << "the copy here counts, and may have come after the Sync's commit";
}

TEST_F(ChunkCopiesTest, ACopyThatNoListNamesIsToldToTheOthers) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  const Actions actions = chunk->OnHomeAnswer(situation_, Of(home_), {Kind::kKnownHere, {home_}}, /*is_here=*/true);
  EXPECT_TRUE(chunk->is_done());
  EXPECT_EQ(actions.tell, Holders{home_});
  EXPECT_TRUE(actions.list_holders);
}

TEST_F(ChunkCopiesTest, WhoeverTheHomeNamesConfirms) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  EXPECT_EQ(AnswerOfHome(*chunk, Kind::kKnown, {home_, second_}).confirm, (Holders{home_, second_}));
  chunk->OnConfirmed(situation_, Of(second_), Confirmation::kHasIt);
  EXPECT_FALSE(chunk->is_done());
  chunk->OnConfirmed(situation_, Of(home_), Confirmation::kHasIt);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
}

TEST_F(ChunkCopiesTest, WhereOneDeniesACopyIsMade) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  AnswerOfHome(*chunk, Kind::kKnown, {home_, second_});
  chunk->OnConfirmed(situation_, Of(home_), Confirmation::kHasIt);
  const Actions actions = chunk->OnConfirmed(situation_, Of(second_), Confirmation::kHasItNot);
  EXPECT_EQ(chunk->state(), State::kReplicating);
  EXPECT_TRUE(actions.store);
  EXPECT_TRUE(actions.send.empty());
  EXPECT_EQ(chunk->OnStored(situation_, StoreResult::kStored).tell, Holders{home_});
  EXPECT_TRUE(chunk->is_done());
}

TEST_F(ChunkCopiesTest, WhileAnotherHasTheClaimTheHomeIsAskedAgain) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  EXPECT_EQ(AnswerOfHome(*chunk, Kind::kWait).ask_again, home_);
  EXPECT_EQ(chunk->state(), State::kWaiting);
  EXPECT_TRUE(AnswerOfHome(*chunk, Kind::kClaim).store) << "whoever had it is gone";
}

TEST_F(ChunkCopiesTest, AHomeThatDoesNotAnswerIsReplaced) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  Set(home_, NodeState::kDown);
  EXPECT_EQ(chunk->OnHomeFailed(situation_).ask, second_);
}

TEST_F(ChunkCopiesTest, AnAnswerThatComesTwiceChangesNothing) {
  const auto chunk = MakeReplicating();
  const Actions actions = AnswerOfHome(*chunk, Kind::kKnownHere, {home_, second_});
  EXPECT_EQ(chunk->state(), State::kReplicating);
  EXPECT_TRUE(actions.confirm.empty());
  EXPECT_FALSE(chunk->OnHomeFailed(situation_).ask);
  EXPECT_TRUE(chunk->OnConfirmed(situation_, Of(second_), Confirmation::kHasIt).send.empty());
}

TEST_F(ChunkCopiesTest, AConfirmAfterThePeerWentDownCountsNot) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  AnswerOfHome(*chunk, Kind::kKnown, {home_, second_});
  const PeerSession asked = Of(second_);
  chunk->OnConfirmed(situation_, Of(home_), Confirmation::kHasIt);
  Set(second_, NodeState::kDown);
  chunk->OnSessionsLost(situation_, {second_});
  const Actions actions = chunk->OnConfirmed(situation_, asked, Confirmation::kHasIt);
  EXPECT_EQ(chunk->state(), State::kReplicating);
  EXPECT_TRUE(actions.store);
}

// It may have lost what it vouched for.
TEST_F(ChunkCopiesTest, WhatAPeerSaidInAnEarlierSessionCountsNot) {
  const auto chunk = MakeReplicating();
  chunk->OnStored(situation_, StoreResult::kStored);
  const PeerSession sent = Of(home_);
  Set(home_, NodeState::kUp);  // again
  chunk->OnSessionsLost(situation_, {home_});
  const Actions actions = chunk->OnSent(situation_, sent, SendResult::kDurable);
  EXPECT_FALSE(chunk->is_done());
  EXPECT_EQ(actions.send, Holders{home_}) << "it is sent once more";
}

TEST_F(ChunkCopiesTest, TheHomesOwnCopyCountsNotOnceItsSessionIsLost) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  const PeerSession asked = Of(home_);
  Set(home_, NodeState::kUp);  // again
  const Actions actions = chunk->OnHomeAnswer(situation_, asked, {Kind::kKnownHere, {home_, second_}}, false);
  EXPECT_EQ(actions.confirm, (Holders{home_, second_})) << "both are asked";
}

TEST_F(ChunkCopiesTest, AHolderWhoseSessionIsLostIsReplaced) {
  situation_.copies = situation_.min_replicas = 3;
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  EXPECT_EQ(AnswerOfHome(*chunk, Kind::kClaim).send, (Holders{home_, second_}));
  chunk->OnStored(situation_, StoreResult::kStored);
  chunk->OnSent(situation_, Of(home_), SendResult::kDurable);
  Set(home_, NodeState::kDown);
  const Actions actions = chunk->OnSessionsLost(situation_, {home_});
  EXPECT_EQ(actions.send, Holders{nodes_[3].id});
  chunk->OnSent(situation_, Of(second_), SendResult::kDurable);
  EXPECT_FALSE(chunk->is_done());
  chunk->OnSent(situation_, Of(nodes_[3].id), SendResult::kDurable);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
}

TEST_F(ChunkCopiesTest, ATargetThatRefusesIsReplaced) {
  const auto chunk = MakeReplicating();
  chunk->OnStored(situation_, StoreResult::kStored);
  const PeerSession sent = Of(home_);
  SetFull(home_);
  EXPECT_EQ(chunk->OnSent(situation_, sent, SendResult::kNotStored).send, Holders{second_});
  const Actions actions = chunk->OnSent(situation_, Of(second_), SendResult::kDurable);
  EXPECT_TRUE(Contains(actions.tell, second_)) << "the list that came with it names the home";
  EXPECT_TRUE(Contains(actions.tell, home_)) << "its claim ends";
}

TEST_F(ChunkCopiesTest, ASecondPutOnTheWayChangesNothing) {
  const auto chunk = MakeReplicating();
  EXPECT_FALSE(chunk->NeedsBytes());
  EXPECT_TRUE(chunk->WasPut());
}

TEST_F(ChunkCopiesTest, WithTooFewNodesItIsUnderReplicatedUntilOneComes) {
  for (size_t i = 1; i < nodes_.size(); ++i) Set(nodes_[i].id, NodeState::kDown);
  const auto chunk = MakePut();
  EXPECT_EQ(chunk->Begin(situation_).ask, self_);
  chunk->OnHomeAnswer(situation_, Of(self_), {Kind::kClaim, {}}, false);
  EXPECT_FALSE(chunk->is_under_replicated()) << "it is being stored";
  chunk->OnStored(situation_, StoreResult::kStored);
  EXPECT_TRUE(chunk->is_under_replicated());
  EXPECT_EQ(chunk->under_replicated_since(), situation_.now);
  chunk->Retry(situation_, /*is_pinned=*/false);
  EXPECT_TRUE(chunk->is_under_replicated()) << "it lies here, and a Sync at another level may count on it";
  Set(second_, NodeState::kUp);
  EXPECT_EQ(chunk->Retry(situation_, false).send, Holders{second_});
  const Actions actions = chunk->OnSent(situation_, Of(second_), SendResult::kDurable);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
  EXPECT_TRUE(actions.end_claim);
  EXPECT_TRUE(actions.list_holders);
}

TEST_F(ChunkCopiesTest, FewerCopiesDoWhereTheOperatorSaysSo) {
  for (size_t i = 1; i < nodes_.size(); ++i) Set(nodes_[i].id, NodeState::kDown);
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  chunk->OnHomeAnswer(situation_, Of(self_), {Kind::kClaim, {}}, false);
  chunk->OnStored(situation_, StoreResult::kStored);
  situation_.min_replicas = 1;
  chunk->Retry(situation_, true);
  EXPECT_EQ(chunk->end().outcome, Outcome::kUnderReplicated);
}

class FullCluster : public ChunkCopiesTest {
 protected:
  FullCluster() {
    for (size_t i = 1; i < nodes_.size(); ++i) SetFull(nodes_[i].id);
    chunk_->Begin(situation_);
    AnswerOfHome(*chunk_, Kind::kClaim);
    chunk_->OnStored(situation_, StoreResult::kStored);
    EXPECT_TRUE(situation_.IsFullEverywhere());
  }
  std::unique_ptr<ChunkCopies> chunk_ = MakePut();
};

TEST_F(FullCluster, WhatIsPinnedWaits) {
  chunk_->Retry(situation_, /*is_pinned=*/true);
  EXPECT_TRUE(chunk_->is_under_replicated());
}

TEST_F(FullCluster, WhatIsReferencedWaitsWithoutAPin) {
  chunk_->OnReferenced();
  chunk_->Retry(situation_, false);
  EXPECT_TRUE(chunk_->is_under_replicated());
}

TEST_F(FullCluster, WhatNobodyNeedsIsLeftToRepair) {
  chunk_->Retry(situation_, false);
  EXPECT_EQ(chunk_->end().outcome, Outcome::kUnderReplicated);
}

// The pin goes while the chunk is on its way: only a chunk for which nothing can be done is looked at.
TEST_F(ChunkCopiesTest, UnpinnedWhileItIsSentItGetsItsCopies) {
  const auto chunk = MakeReplicating();
  chunk->OnStored(situation_, StoreResult::kStored);
  EXPECT_FALSE(chunk->is_under_replicated());
  chunk->OnSent(situation_, Of(home_), SendResult::kDurable);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
}

TEST_F(ChunkCopiesTest, ANodeWithoutRoomStoresOnOthersAlone) {
  ChunkCopies chunk(digest_, kSize, ChunkCopies::Put{SomeBytes(), /*has_room=*/false, situation_.now});
  chunk.SetSequence(1);
  chunk.Begin(situation_);
  const Actions actions = AnswerOfHome(chunk, Kind::kClaim);
  EXPECT_FALSE(actions.store);
  EXPECT_EQ(actions.send, (Holders{home_, second_}));
}

TEST_F(ChunkCopiesTest, WhatThisNodeCannotStoreGoesToAnother) {
  const auto chunk = MakeReplicating();
  SetFull(self_);
  EXPECT_EQ(chunk->OnStored(situation_, StoreResult::kNotStored).send, Holders{second_});
  EXPECT_EQ(chunk->local(), Local::kNoRoom);
}

TEST_F(ChunkCopiesTest, BytesThatAreWrongLeaveMemory) {
  const auto chunk = MakeReplicating();
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(chunk->bytes().empty());
    chunk->OnSent(situation_, Of(home_), SendResult::kCorrupt);
  }
  EXPECT_TRUE(chunk->bytes().empty());
  chunk->OnStored(situation_, StoreResult::kNoBytes);
  EXPECT_EQ(chunk->local(), Local::kAbsent);
}

TEST_F(ChunkCopiesTest, BytesLeaveMemoryOnlyWhereTheyCanBeReadAgain) {
  const auto chunk = MakeReplicating();
  EXPECT_FALSE(chunk->DropBytes()) << "they are being stored";
  chunk->OnStored(situation_, StoreResult::kStored);
  EXPECT_TRUE(chunk->DropBytes());
  EXPECT_TRUE(chunk->bytes().empty());
}

class UnreadableChunk : public ChunkCopiesTest {
 protected:
  // Dropped from memory, on its way to its home, and not readable here.
  UnreadableChunk() {
    chunk_ = MakeReplicating();
    chunk_->OnStored(situation_, StoreResult::kStored);
    chunk_->DropBytes();
    chunk_->OnLoadFailed(situation_, home_, MakeError(ErrorCode::kCorrupt, "bad"));
  }
  std::unique_ptr<ChunkCopies> chunk_;
};

TEST_F(UnreadableChunk, ItIsTriedAgainLater) {
  EXPECT_TRUE(chunk_->failure());
  EXPECT_EQ(chunk_->local(), Local::kAbsent) << "this node's copy is damaged";
  chunk_->Retry(situation_, true);
  EXPECT_TRUE(chunk_->is_under_replicated());
  situation_.now += std::chrono::seconds(5);
  EXPECT_FALSE(chunk_->Retry(situation_, true).send.empty());
  chunk_->OnLoaded(SomeBytes());
  EXPECT_FALSE(chunk_->failure());
}

TEST_F(UnreadableChunk, APutBringsItsBytes) {
  ASSERT_TRUE(chunk_->NeedsBytes());
  chunk_->OnPutAgain(SomeBytes());
  EXPECT_FALSE(chunk_->failure());
  const Actions actions = chunk_->Retry(situation_, true);
  EXPECT_TRUE(actions.store);
  EXPECT_EQ(actions.send, Holders{home_});
}

TEST_F(UnreadableChunk, WithoutAPinItIsForgotten) {
  chunk_->Retry(situation_, false);
  EXPECT_EQ(chunk_->end().outcome, Outcome::kAbandoned);
  EXPECT_FALSE(chunk_->end().has_copies);
}

TEST_F(ChunkCopiesTest, ACoveredChunkThatItsHomeDoesNotKnowIsLookedForOnItsTargets) {
  const auto chunk = MakeCovered();
  chunk->Begin(situation_);
  EXPECT_EQ(AnswerOfHome(*chunk, Kind::kClaim).confirm, (Holders{home_, second_}));
  chunk->OnConfirmed(situation_, Of(home_), Confirmation::kHasItNot);
  const Actions actions = chunk->OnConfirmed(situation_, Of(second_), Confirmation::kHasIt);
  EXPECT_EQ(actions.send, Holders{home_}) << "read here or from another node first";
  EXPECT_FALSE(actions.store);
}

TEST_F(ChunkCopiesTest, ACoveredChunkIsStoredHereWhereNoOtherNodeTakesIt) {
  for (size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].id != home_) Set(nodes_[i].id, NodeState::kDown);
  }
  const auto chunk = MakeCovered();
  chunk->Begin(situation_);
  situation_.may_load = false;
  EXPECT_FALSE(AnswerOfHome(*chunk, Kind::kKnownHere, {home_}).load);
  EXPECT_TRUE(chunk->is_under_replicated());
  situation_.may_load = true;
  EXPECT_TRUE(chunk->Retry(situation_, true).load);
  EXPECT_FALSE(chunk->is_under_replicated());
  chunk->OnLoaded(SomeBytes());
  chunk->OnStored(situation_, StoreResult::kStored);
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
}

TEST_F(ChunkCopiesTest, ALoadThatFailsAfterAPutGoesOnWithItsBytes) {
  for (size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].id != home_) Set(nodes_[i].id, NodeState::kDown);
  }
  const auto chunk = MakeCovered();
  chunk->Begin(situation_);
  EXPECT_TRUE(AnswerOfHome(*chunk, Kind::kKnownHere, {home_}).load);
  chunk->OnPutAgain(SomeBytes());
  const Actions actions = chunk->OnLoadFailed(situation_, self_, MakeError(ErrorCode::kUnavailable, "away"));
  EXPECT_FALSE(chunk->failure());
  EXPECT_TRUE(actions.store);
}

TEST_F(ChunkCopiesTest, ThisNodesDiskAloneIsStoredToAtOnce) {
  const auto chunk = MakePut();
  chunk->Begin(situation_);
  EXPECT_TRUE(chunk->StoreHere().store);
  EXPECT_FALSE(chunk->StoreHere().store) << "it is being stored";
  const Actions actions = AnswerOfHome(*chunk, Kind::kClaim);
  EXPECT_FALSE(actions.store);
  EXPECT_EQ(actions.send, Holders{home_});
}

TEST_F(ChunkCopiesTest, ARepairEndsUnderReplicatedWithoutASync) {
  ChunkCopies chunk(digest_, kSize, self_,
                    {.bytes = SomeBytes(), .holders = {}, .domain_copies = 0, .is_here = true, .at = situation_.now});
  EXPECT_EQ(chunk.Begin(situation_).confirm, Holders{home_}) << "no list may name it";
  for (size_t i = 1; i < nodes_.size(); ++i) Set(nodes_[i].id, NodeState::kDown);
  chunk.OnConfirmed(situation_, Of(home_), Confirmation::kNoAnswer);
  EXPECT_EQ(chunk.end().outcome, Outcome::kUnderReplicated);
}

TEST_F(ChunkCopiesTest, ASyncThatJoinsARepairTrustsNoList) {
  ChunkCopies chunk(
      digest_, kSize, self_,
      {.bytes = SomeBytes(), .holders = {second_}, .domain_copies = 0, .is_here = false, .at = situation_.now});
  EXPECT_EQ(chunk.Begin(situation_).confirm, Holders{home_});
  chunk.SetSequence(1);
  EXPECT_TRUE(chunk.OnConfirmed(situation_, Of(home_), Confirmation::kHasItNot).store);
  const Actions actions = chunk.OnStored(situation_, StoreResult::kStored);
  EXPECT_EQ(actions.ask, home_) << "who has it, from the beginning";
  EXPECT_TRUE(actions.end_repair);
}

TEST_F(ChunkCopiesTest, AfterTheEndNothingChanges) {
  const auto chunk = MakeReplicating();
  chunk->OnStored(situation_, StoreResult::kStored);
  chunk->OnSent(situation_, Of(home_), SendResult::kDurable);
  ASSERT_TRUE(chunk->is_done());
  EXPECT_TRUE(chunk->bytes().empty());
  EXPECT_TRUE(chunk->OnSent(situation_, Of(second_), SendResult::kNotStored).send.empty());
  EXPECT_FALSE(chunk->OnStored(situation_, StoreResult::kNotStored).store);
  chunk->OnLoaded(SomeBytes());
  EXPECT_TRUE(chunk->bytes().empty());
  EXPECT_TRUE(chunk->OnLoadFailed(situation_, home_, MakeError(ErrorCode::kIo, "")).send.empty());
  EXPECT_TRUE(chunk->OnSessionsLost(situation_, {home_}).send.empty());
  EXPECT_FALSE(chunk->StoreHere().store);
  EXPECT_FALSE(chunk->NeedsBytes());
  EXPECT_EQ(chunk->end().outcome, Outcome::kReplicated);
}

}  // namespace
}  // namespace cairnfs::cluster
