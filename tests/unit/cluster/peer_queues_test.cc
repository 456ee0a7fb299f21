// What may go to a peer, and when.
#include "cluster/peer_queues.h"

#include <gtest/gtest.h>

namespace cairnfs::cluster {
namespace {

using Pace = PeerQueues::Pace;
using Reply = PeerQueues::Reply;

class PeerQueuesTest : public ::testing::Test {
 protected:
  PeerQueuesTest() { node_.bytes[0] = std::byte{1}; }

  ChunkPtr MakeChunk(size_t size) {
    static const std::vector<std::byte> kBytes(kPayloadBytesFull);
    Digest digest;
    const uint64_t number = ++chunks_;
    std::memcpy(digest.bytes.data(), &number, sizeof number);
    std::vector<io::Slice> bytes{io::Slice{{}, kBytes.data(), size, {}}};
    return std::make_shared<ChunkCopies>(digest, size, ChunkCopies::Put{std::move(bytes), true, now_});
  }
  ChunkPtr MakeUnloaded() { return std::make_shared<ChunkCopies>(Digest(), kMiB, now_); }
  std::vector<ChunkPtr> TakeHas(Pace pace = Pace::kNow) {
    return queues_.TakeQuestion(node_, Question::kHas, now_, pace);
  }
  PeerQueues::Message Take(Pace pace = Pace::kNow) { return queues_.TakeMessage(node_, now_, pace); }

  PeerQueues queues_{8 * kMiB};
  NodeId node_;
  uint64_t chunks_ = 0;
  Clock::time_point now_{std::chrono::hours(1)};
};

TEST_F(PeerQueuesTest, WhileAQuestionIsUnderWayTheNextGathers) {
  for (int i = 0; i < 3; ++i) queues_.Ask(node_, Question::kHas, MakeChunk(1));
  const auto first = TakeHas();
  EXPECT_EQ(first.size(), 3U);
  queues_.Ask(node_, Question::kHas, MakeChunk(1));
  EXPECT_TRUE(TakeHas().empty());
  queues_.OnReply(node_, Question::kHas, Reply::kAnswered, first, now_);
  EXPECT_EQ(TakeHas().size(), 1U);
}

TEST_F(PeerQueuesTest, AFullQuestionGoesBesideAnother) {
  for (size_t i = 0; i < 2 * kDigestsPerMessageMax + 1; ++i) queues_.Ask(node_, Question::kHas, MakeChunk(1));
  EXPECT_EQ(TakeHas().size(), kDigestsPerMessageMax);
  EXPECT_EQ(TakeHas().size(), kDigestsPerMessageMax);
  EXPECT_TRUE(TakeHas().empty());
}

TEST_F(PeerQueuesTest, FourQuestionsAtMostAreHeldBack) {
  for (size_t i = 0; i < 6 * kDigestsPerMessageMax; ++i) queues_.Ask(node_, Question::kHeldHas, MakeChunk(1));
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(queues_.TakeQuestion(node_, Question::kHeldHas, now_, Pace::kNow).empty());
  EXPECT_TRUE(queues_.TakeQuestion(node_, Question::kHeldHas, now_, Pace::kNow).empty());
}

TEST_F(PeerQueuesTest, ABusyPeerIsAskedTheSameLater) {
  const ChunkPtr chunk = MakeChunk(1);
  queues_.Ask(node_, Question::kConfirm, chunk);
  const auto asked = queues_.TakeQuestion(node_, Question::kConfirm, now_, Pace::kNow);
  queues_.OnReply(node_, Question::kConfirm, Reply::kBusy, asked, now_);
  EXPECT_TRUE(queues_.Ready(now_).empty());
  EXPECT_TRUE(queues_.TakeQuestion(node_, Question::kConfirm, now_, Pace::kNow).empty());
  now_ += std::chrono::seconds(1);
  EXPECT_EQ(queues_.Ready(now_), std::vector<NodeId>{node_});
  EXPECT_EQ(queues_.TakeQuestion(node_, Question::kConfirm, now_, Pace::kNow), std::vector<ChunkPtr>{chunk});
}

TEST_F(PeerQueuesTest, AllThatWasToBeAskedOfAHomeIsTakenTogether) {
  queues_.Ask(node_, Question::kHas, MakeChunk(1));
  queues_.Ask(node_, Question::kHeldHas, MakeChunk(1));
  queues_.Ask(node_, Question::kConfirm, MakeChunk(1));
  EXPECT_EQ(queues_.TakeUnasked(node_).size(), 2U);
  EXPECT_TRUE(queues_.TakeUnasked(node_).empty());
}

TEST_F(PeerQueuesTest, WritersGoFirst) {
  queues_.Ask(node_, Question::kHas, MakeChunk(1));
  queues_.Send(node_, MakeChunk(1));
  EXPECT_TRUE(TakeHas(Pace::kAfterWriters).empty());
  EXPECT_TRUE(Take(Pace::kAfterWriters).items.empty());
  EXPECT_EQ(queues_.put_off(), 2U);
  EXPECT_EQ(TakeHas().size(), 1U);
  EXPECT_EQ(Take().items.size(), 1U);
}

TEST_F(PeerQueuesTest, AMessageIsClosedOnceItIsFull) {
  for (int i = 0; i < 5; ++i) queues_.Send(node_, MakeChunk(kPayloadBytesFull / 2));
  const auto message = Take();
  EXPECT_EQ(message.items.size(), 2U);
  EXPECT_EQ(message.bytes, kPayloadBytesFull);
}

TEST_F(PeerQueuesTest, TheWindowBoundsWhatIsOnItsWay) {
  for (int i = 0; i < 10; ++i) queues_.Send(node_, MakeChunk(2 * kMiB));
  auto first = Take(), second = Take();
  EXPECT_EQ(first.bytes + second.bytes, 8 * kMiB);
  EXPECT_TRUE(Take().items.empty());
  queues_.OnSent(node_, Reply::kAnswered, first, now_);
  EXPECT_EQ(Take().bytes, 4 * kMiB);
}

TEST_F(PeerQueuesTest, ThreeMessagesThatAreNotFullGoAtOnce) {
  for (int i = 0; i < 3; ++i) {
    queues_.Send(node_, MakeChunk(1));
    EXPECT_EQ(Take().items.size(), 1U);
  }
  queues_.Send(node_, MakeChunk(1));
  EXPECT_TRUE(Take().items.empty());
  queues_.Send(node_, MakeChunk(kPayloadBytesFull));
  EXPECT_EQ(Take().items.size(), 2U);
}

TEST_F(PeerQueuesTest, WhatABusyPeerRefusedGoesFirst) {
  const ChunkPtr chunk = MakeChunk(1);
  queues_.Send(node_, chunk);
  auto message = Take();
  queues_.Send(node_, MakeChunk(1));
  queues_.OnSent(node_, Reply::kBusy, message, now_);
  EXPECT_TRUE(Take().items.empty());
  now_ += std::chrono::seconds(1);
  const auto again = Take();
  ASSERT_EQ(again.items.size(), 2U);
  EXPECT_EQ(again.items[0].chunk, chunk);
}

TEST_F(PeerQueuesTest, APeerThatFailedIsLeftAloneForAMoment) {
  queues_.Send(node_, MakeChunk(1));
  auto message = Take();
  queues_.Send(node_, MakeChunk(1));
  queues_.OnSent(node_, Reply::kFailed, message, now_);
  EXPECT_TRUE(Take().items.empty());
  EXPECT_EQ(queues_.TakeUnsent(node_).size(), 2U) << "these go elsewhere";
  queues_.Send(node_, MakeChunk(1));
  EXPECT_TRUE(Take().items.empty());
  now_ += std::chrono::milliseconds(300);
  EXPECT_EQ(Take().items.size(), 1U);
}

TEST_F(PeerQueuesTest, AChunkThatIsNotInMemoryIsLoadedWithinTheWindow) {
  for (int i = 0; i < 10; ++i) queues_.Send(node_, MakeUnloaded());
  auto message = Take();
  EXPECT_TRUE(message.items.empty());
  EXPECT_EQ(message.to_load.size(), 8U);
  message.to_load[0].chunk->OnLoaded(MakeChunk(kMiB)->bytes());
  queues_.OnLoaded(node_, message.to_load[0]);
  queues_.OnLoadFailed(node_, message.to_load[1]);
  const auto next = Take();
  EXPECT_EQ(next.items.size(), 1U);
  EXPECT_EQ(next.to_load.size(), 1U);
}

TEST_F(PeerQueuesTest, UpdatesHaveABoundAndAreToldInTheirOrder) {
  Digest digest;
  while (queues_.Tell(node_, digest, {}) < 64 * 1024) {
  }
  EXPECT_FALSE(queues_.TakeUpdatesDropped());
  EXPECT_EQ(queues_.Tell(node_, digest, {}), 64U * 1024);
  EXPECT_TRUE(queues_.TakeUpdatesDropped());
  EXPECT_FALSE(queues_.TakeUpdatesDropped());
  EXPECT_EQ(Take().items.size(), kDigestsPerMessageMax);
  queues_.TellFirst(node_, {nullptr, digest, {node_}});
  EXPECT_EQ(Take().items.front().holders, Holders{node_});
  EXPECT_EQ(queues_.TakeUnsent(node_).size(), 64 * 1024 - 2 * kDigestsPerMessageMax + 1);
  EXPECT_EQ(queues_.Tell(node_, digest, {}), 1U);
}

}  // namespace
}  // namespace cairnfs::cluster
