// What a Sync waits for, while the chunks and the nodes change.
#include "cluster/pending_chunks.h"

#include <gtest/gtest.h>

#include <set>

namespace cairnfs::cluster {
namespace {

using Confirmation = ChunkCopies::Confirmation;
using Scope = SyncPoint::Scope;
using SendResult = ChunkCopies::SendResult;
using StoreResult = ChunkCopies::StoreResult;

constexpr size_t kChunkSize = 100;

class PendingChunksTest : public ::testing::Test {
 protected:
  PendingChunksTest() {
    for (uint8_t i = 1; i <= 3; ++i) {
      NodeInfo node;
      node.id.bytes[0] = static_cast<std::byte>(i);
      node.state = NodeState::kUp;
      node.session = i;
      nodes_.push_back(node);
    }
    situation_ = {.self = nodes_[0].id,
                  .members = {},
                  .reachable = {},
                  .copies = 2,
                  .min_replicas = 2,
                  .now = Clock::time_point(std::chrono::hours(1)),
                  .store_fails = false,
                  .may_load = true};
    Look();
  }
  void Look() { situation_.members = situation_.reachable = std::make_shared<const View>(nodes_, ++revision_); }
  void Down(size_t i) {
    nodes_[i].state = NodeState::kDown;
    nodes_[i].session = 0;
    Look();
  }
  Digest NextDigest() {
    Digest digest;
    digest.bytes[0] = static_cast<std::byte>(++digests_);
    return digest;
  }
  // Its home has said that nobody has it.
  ChunkPtr Put() {
    static const std::array<std::byte, kChunkSize> kBytes{};
    std::vector<io::Slice> bytes{io::Slice{{}, kBytes.data(), kChunkSize, {}}};
    return Add(std::make_shared<ChunkCopies>(NextDigest(), kChunkSize, ChunkCopies::Put{bytes, true, situation_.now}));
  }
  ChunkPtr Cover() { return Add(std::make_shared<ChunkCopies>(NextDigest(), kChunkSize, situation_.now)); }
  ChunkPtr Add(const ChunkPtr& chunk) {
    pending_.Add(chunk);
    pending_.AwaitBySync(chunk);
    const NodeId home = *chunk->Begin(situation_).ask;
    targets_[chunk] = chunk->OnHomeAnswer(situation_, situation_.SessionOf(home), {}, false).send;
    pending_.Update(chunk);
    return chunk;
  }
  void Store(const ChunkPtr& chunk) {
    chunk->OnStored(situation_, StoreResult::kStored);
    pending_.Update(chunk);
  }
  void Send(const ChunkPtr& chunk, const NodeId& node) {
    chunk->OnSent(situation_, situation_.SessionOf(node), SendResult::kDurable);
    pending_.Update(chunk);
  }
  void SendToTarget(const ChunkPtr& chunk) { Send(chunk, targets_[chunk].at(0)); }
  void FailToLoad(const ChunkPtr& chunk) {
    chunk->OnLoadFailed(situation_, targets_[chunk].at(0), MakeError(ErrorCode::kIo, "bad disk"));
    pending_.Update(chunk);
  }
  SyncPoint Point(Scope scope) {
    return {pending_, scope, [this](const Digest& digest) { return pinned_.contains(digest); }};
  }

  std::vector<NodeInfo> nodes_;
  uint64_t revision_ = 0;
  int digests_ = 0;
  Situation situation_;
  PendingChunks pending_;
  std::map<ChunkPtr, std::vector<NodeId>> targets_;
  std::set<Digest> pinned_;
};

TEST_F(PendingChunksTest, ASyncWaitsForWhatWasPutBefore) {
  const ChunkPtr chunk = Put();
  SyncPoint point = Point(Scope::kCopies);
  Put();
  EXPECT_FALSE(point.IsPlaced());
  Store(chunk);
  EXPECT_TRUE(point.IsPlaced());
  EXPECT_FALSE(point.HasCopies());
  SendToTarget(chunk);
  EXPECT_TRUE(point.HasCopies());
  EXPECT_EQ(pending_.awaited_bytes(), kChunkSize);
  EXPECT_EQ(pending_.Find(chunk->digest()), nullptr);
}

TEST_F(PendingChunksTest, ASyncOfSomeWaitsForNoOthers) {
  Put();
  const ChunkPtr last = Put(), first = Put();
  const std::vector<Digest> digests{first->digest(), NextDigest(), last->digest()};
  SyncPoint point(
      pending_, Scope::kCopies, [](const Digest&) { return true; }, digests);
  EXPECT_EQ(point.Chunks(), (ChunksBySequence{{2, last}, {3, first}})) << "in the order of the puts";
  Store(last);
  EXPECT_FALSE(point.IsPlaced());
  Store(first);
  EXPECT_TRUE(point.IsPlaced());
  SendToTarget(first);
  EXPECT_FALSE(point.HasCopies());
  SendToTarget(last);
  EXPECT_TRUE(point.HasCopies());
}

TEST_F(PendingChunksTest, ASyncWaitsOnWhileThePlacementChanges) {
  const ChunkPtr chunk = Put();
  SyncPoint point = Point(Scope::kCopies);
  Store(chunk);
  const NodeId target = targets_[chunk].at(0);
  const PeerSession sent = situation_.SessionOf(target);
  const size_t gone = nodes_[1].id == target ? 1 : 2;
  Down(gone);
  chunk->OnSessionsLost(situation_, {target});
  const auto actions = chunk->OnSent(situation_, sent, SendResult::kDurable);
  pending_.Update(chunk);
  EXPECT_FALSE(point.HasCopies());
  ASSERT_EQ(actions.send, std::vector<NodeId>{nodes_[3 - gone].id});
  Send(chunk, actions.send[0]);
  EXPECT_TRUE(point.HasCopies());
}

TEST_F(PendingChunksTest, ThisNodesDiskNeedsNoOthers) {
  const ChunkPtr chunk = Put();
  const ChunkPtr covered = Cover();
  SyncPoint point = Point(Scope::kThisNode);
  EXPECT_FALSE(point.IsPlaced());
  Store(chunk);
  EXPECT_FALSE(point.IsPlaced()) << "no node vouches for what was put elsewhere";
  for (const NodeInfo& node : nodes_) {
    covered->OnConfirmed(situation_, situation_.SessionOf(node.id),
                         node.id == nodes_[1].id ? Confirmation::kHasIt : Confirmation::kHasItNot);
  }
  pending_.Update(covered);
  EXPECT_TRUE(point.IsPlaced()) << "what was put elsewhere need not lie here";
}

TEST_F(PendingChunksTest, AnUnreadableChunkIsLeftOutWhileItIsPinned) {
  const ChunkPtr chunk = Put();
  Store(chunk);
  pinned_.insert(chunk->digest());
  SyncPoint point = Point(Scope::kCopies);
  EXPECT_TRUE(chunk->DropBytes());
  FailToLoad(chunk);
  EXPECT_TRUE(point.HasCopies());
  EXPECT_EQ(point.TakeLeftOut().count(chunk->digest()), 1U);
  pinned_.clear();
  EXPECT_FALSE(point.HasCopies()) << "whoever tries it again forgets it";
}

TEST_F(PendingChunksTest, ARepairIsAwaitedOnceItWasPut) {
  auto chunk = std::make_shared<ChunkCopies>(
      NextDigest(), kChunkSize, situation_.self,
      ChunkCopies::Repair{.bytes = {}, .holders = {}, .domain_copies = 0, .is_here = true, .at = situation_.now});
  pending_.Add(chunk);
  pending_.Update(chunk);
  EXPECT_TRUE(Point(Scope::kCopies).HasCopies());
  EXPECT_EQ(pending_.awaited_bytes(), 0U);
  pending_.AwaitBySync(chunk);
  pending_.AwaitBySync(chunk);
  EXPECT_EQ(pending_.awaited_bytes(), kChunkSize);
  EXPECT_FALSE(Point(Scope::kCopies).HasCopies());
}

TEST_F(PendingChunksTest, BytesLeaveMemoryInTheOrderOfPuts) {
  const ChunkPtr first = Put();
  Store(first);
  situation_.now += std::chrono::seconds(1);
  const ChunkPtr second = Put();
  Store(second);
  pending_.DropBytes(situation_.now, std::chrono::seconds(1));
  EXPECT_TRUE(first->bytes().empty());
  EXPECT_FALSE(second->bytes().empty());
}

TEST_F(PendingChunksTest, UnderReplicatedOnesAreFoundInTurn) {
  Down(1);
  Down(2);
  std::set<ChunkPtr> chunks;
  for (int i = 0; i < 3; ++i) {
    const ChunkPtr chunk = Put();
    Store(chunk);
    chunks.insert(chunk);
    pinned_.insert(chunk->digest());
  }
  ChunkPtr last;
  for (const ChunkPtr& chunk : chunks) {
    last = pending_.NextUnderReplicated(last);
    EXPECT_EQ(last, chunk);
  }
  EXPECT_EQ(pending_.NextUnderReplicated(last), nullptr);
  const SyncPoint point = Point(Scope::kCopies);
  EXPECT_FALSE(point.IsShort(situation_.now, std::chrono::seconds(1)));
  EXPECT_TRUE(point.IsShort(situation_.now + std::chrono::seconds(2), std::chrono::seconds(1)));
}

}  // namespace
}  // namespace cairnfs::cluster
