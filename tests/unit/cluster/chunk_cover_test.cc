// Chunks that were put on one node, by whoever, and get their copies since another name needs them.
#include "base/clock.h"
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

using Scope = ClusterChunkStore::SyncScope;

class CoverTest : public ClusterChunkTest {
 protected:
  static std::vector<store::ChunkPin> Cover(TestNode& node, const std::vector<TestChunk>& chunks) {
    std::vector<ClusterChunkStore::Sized> sized;
    for (const TestChunk& chunk : chunks) sized.push_back({chunk.digest, chunk.bytes.size()});
    return node.chunks->Cover(sized);
  }
  void ExpectAtLeast(const std::vector<TestChunk>& chunks, size_t copies) {
    for (const TestChunk& chunk : chunks) EXPECT_GE(CopiesOf(chunk), copies);
  }
  static bool IsUnreadable(TestNode& node, const TestChunk& chunk) {
    auto unreadable = node.chunks->SyncReadable({}, Scope::kCopies);
    EXPECT_TRUE(unreadable.ok());
    return unreadable.ok() && unreadable->contains(chunk.digest);
  }
};

// As after a restart of the node: nobody there knows any more that copies are to come.
TEST_F(CoverTest, WhatLiesHereAloneGetsItsCopies) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id});
  ASSERT_OK(nodes_[0]->chunks->Sync());  // of nothing
  const auto pins = Cover(*nodes_[0], chunks);
  EXPECT_EQ(pins.size(), chunks.size());
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectAtLeast(chunks, 2);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().known_in_cluster_bytes_total, 0u) << "nothing was put";
}

TEST_F(CoverTest, WhatLiesOnAnotherNodeAloneGetsItsCopies) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[1], chunk, {nodes_[1]->id});
  const auto pins = Cover(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectAtLeast(chunks, 2);
}

TEST_F(CoverTest, InAClusterOfTwoTheOtherOneTakesIt) {
  AddNodes(2);
  const auto chunks = MakeChunks(1, 20);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[1], chunk, {});
  const auto pins = Cover(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(CoverTest, WhatIsKnownToHaveItsCopiesCostsNothing) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_TRUE(Cover(*nodes_[0], chunks).empty());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
}

TEST_F(CoverTest, CopiesThatCannotBeMadeFailTheSyncInTime) {
  options_.sync_wait_max = std::chrono::seconds(1);
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 5);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id});
  auto pins = Cover(*nodes_[0], chunks);
  const Status synced = nodes_[0]->chunks->Sync();
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kUnavailable) << synced.error().message;
  ASSERT_OK(SyncLocal(*nodes_[0]));
  // Whoever needed them has given up: nobody else waits for them.
  pins.clear();
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->Sync().ok(); }));
}

TEST_F(CoverTest, WhoWaitsForCopiesSaysForHowLong) {
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 5);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id});
  const auto pins = Cover(*nodes_[0], chunks);
  const auto late = nodes_[0]->chunks->SyncReadable(Context().WithDeadline(Clock::Now()), Scope::kCopies);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable) << late.error().message;
  std::stop_source stop;
  std::thread stopper([&] {
    Clock::SleepFor(std::chrono::seconds(1));
    stop.request_stop();
  });
  const auto given_up = nodes_[0]->chunks->SyncReadable(Context(stop.get_token()), Scope::kCopies);
  stopper.join();
  ASSERT_FALSE(given_up.ok());
  EXPECT_EQ(given_up.error().code, ErrorCode::kInterrupted) << given_up.error().message;
}

// Nor does it hold up others, who do not name it.
TEST_F(CoverTest, WhatNoNodeCanGiveIsLeftOutAndTriedAgain) {
  AddNodes(3);
  const TestChunk away = MakeChunk(1, 100'000), other = MakeChunk(2, 100'000);
  Plant(*nodes_[2], away, {});  // without a list of holders, which its repair would go by before it is down
  Down(*nodes_[2]);
  auto pins = Cover(*nodes_[0], {away});
  ASSERT_EQ(pins.size(), 1u);
  Put(*nodes_[0], other);
  EXPECT_TRUE(IsUnreadable(*nodes_[0], away));
  EXPECT_EQ(CopiesOf(other), 2u);
  const auto unreadable = nodes_[0]->chunks->SyncReadable({}, Scope::kThisNode);
  ASSERT_OK(unreadable);
  EXPECT_TRUE(unreadable->contains(away.digest)) << "no node vouches for it";
  Start(*nodes_[2]);
  EXPECT_TRUE(Eventually([&] { return !IsUnreadable(*nodes_[0], away); }));
  EXPECT_GE(CopiesOf(away), 2u);
}

TEST_F(CoverTest, APutOfWhatIsOnlyCoveredBringsItsBytes) {
  AddNodes(3);
  const TestChunk chunk = MakeChunk(1, 100'000);
  const auto pins = Cover(*nodes_[0], {chunk});  // no node has it, for all that can be found out
  EXPECT_TRUE(IsUnreadable(*nodes_[0], chunk));
  const auto again = Cover(*nodes_[1], {chunk});
  const Kept kept = PutKept(*nodes_[1], chunk);  // before or after that was found out there
  const Kept here = PutKept(*nodes_[0], chunk);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(IsUnreadable(*nodes_[i], chunk));
    ASSERT_OK(SyncLocal(*nodes_[i]));
  }
  EXPECT_GE(CopiesOf(chunk), 2u);
}

// With fewer nodes than copies, as many as the operator allows.
TEST_F(CoverTest, MinReplicasCountsForThemToo) {
  options_.min_replicas = 1;
  AddNodes(2);
  const auto chunks = MakeChunks(1, 5);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id});
  Down(*nodes_[1]);
  const auto pins = Cover(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
}

}  // namespace
}  // namespace cairnfs::cluster
