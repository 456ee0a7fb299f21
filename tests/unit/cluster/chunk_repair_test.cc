// Repair: copies are made again, and in the failure domains that lack them.
#include "base/clock.h"
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::minutes kTwoLooks{2};  // in which copies that are too many are found

TEST_F(ClusterChunkTest, ALostNodesCopiesAreMadeAnew) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 40);
  for (size_t writer : {0, 1}) {
    for (size_t i = writer; i < chunks.size(); i += 2) Put(*nodes_[writer], chunks[i]);
    ASSERT_OK(nodes_[writer]->chunks->Sync());
  }
  Down(*nodes_[1]);
  cluster_.SetState(nodes_[1]->id, NodeState::kOut);
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
  for (size_t i : {0, 2, 3}) {
    EXPECT_TRUE(Eventually([&] { return nodes_[i]->chunks->ClusterStats().repair_phase.empty(); }));
    EXPECT_EQ(nodes_[i]->chunks->ClusterStats().missing_copies, 0u);
    ExpectReads(*nodes_[i], chunks);
  }
  // Not more than two, and the lists name only who is there.
  ExpectCopies(chunks, 2);
  for (const TestChunk& chunk : chunks) {
    for (size_t i : {0, 2, 3}) {
      if (!IsHere(*nodes_[i], chunk)) continue;
      EXPECT_TRUE(Eventually([&] {
        if (!nodes_[i]->chunks->Sync().ok()) return false;
        auto holders = ReadHolders(*nodes_[i]->engine, chunk.digest);
        return holders.ok() && holders->has_value() && (*holders)->size() == 2 &&
               std::find((*holders)->begin(), (*holders)->end(), nodes_[1]->id) == (*holders)->end();
      }));
    }
  }
}

TEST_F(ClusterChunkTest, WhatWasSavedWhileADomainWasAwayComesToItToo) {
  for (const char* rack : {"a", "a", "a", "b", "b"}) AddNode(512 * kMiB, rack);
  ConnectAll();
  auto copies_in_b = [&](const TestChunk& chunk) {
    return (IsHere(*nodes_[3], chunk) ? 1 : 0) + (IsHere(*nodes_[4], chunk) ? 1 : 0);
  };
  const auto before = MakeChunks(1, 10);
  PutAll(*nodes_[0], before);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (const TestChunk& chunk : before) EXPECT_GE(copies_in_b(chunk), 1);
  Down(*nodes_[3]);
  Down(*nodes_[4]);
  const auto chunks = MakeChunks(100, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
  Start(*nodes_[3]);
  Start(*nodes_[4]);
  for (const TestChunk& chunk : chunks) {
    EXPECT_TRUE(Eventually([&] { return copies_in_b(chunk) >= 1; })) << chunk.digest.ToHex();
    // And one of the others is too many then.
    EXPECT_TRUE(Eventually([&] { return copies_in_b(chunk) == 1 && CopiesOf(chunk) == 2; }, kTwoLooks))
        << chunk.digest.ToHex();
  }
}

TEST_F(ClusterChunkTest, ADomainThatDoesNotAnswerCostsTheOthersNothing) {
  for (const char* rack : {"a", "a", "a", "b"}) AddNode(512 * kMiB, rack);
  ConnectAll();
  Down(*nodes_[3]);
  const auto chunks = MakeChunks(100, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
  // Up, as all believe, each of whom finds its copies in one domain; and nobody is there.
  for (int pass = 0; pass < 2; ++pass) {
    cluster_.SetState(nodes_[3]->id, NodeState::kUp);
    Clock::SleepFor(std::chrono::seconds(2));
    cluster_.SetState(nodes_[3]->id, NodeState::kDown);
  }
  ExpectCopies(chunks, 2);
  Start(*nodes_[3]);
  for (const TestChunk& chunk : chunks) {
    EXPECT_TRUE(Eventually([&] { return IsHere(*nodes_[3], chunk); })) << "it is tried again";
  }
  for (const TestChunk& chunk : chunks) {
    EXPECT_TRUE(Eventually([&] { return CopiesOf(chunk) == 2 && IsHere(*nodes_[3], chunk); }, kTwoLooks));
  }
}

TEST_F(ClusterChunkTest, AHolderThatHasNotWhatItWasToGetIsNotCountedOn) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  // Node 1 was sent these by node 2, which went before it stored them itself.
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id, nodes_[1]->id});
  Down(*nodes_[1]);
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
  // Both copies are in the lists of both.
  for (const TestChunk& chunk : chunks) {
    for (auto& node : nodes_) {
      if (!IsHere(*node, chunk)) continue;
      EXPECT_TRUE(Eventually([&] { return ListOf(*node, chunk).size() == 2; }));
    }
  }
}

TEST_F(ClusterChunkTest, AChunkThatNoListNamesThisNodeForIsRepairedAllTheSame) {
  AddNodes(3);
  const TestChunk chunk = MakeChunk(3, 200'000);
  Plant(*nodes_[0], chunk, {nodes_[1]->id, nodes_[2]->id});
  Down(*nodes_[1]);
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually([&] { return CopiesOf(chunk) == 2; }));
}

// More than repair has under way at once, and too few nodes for what it is to make.
TEST_F(ClusterChunkTest, RepairGoesOnWhereThereAreTooFewNodes) {
  options_.copies = 3;
  AddNode();
  const auto chunks = MakeChunks(9500, 70);
  ASSERT_GT(SizeOf(chunks), 16 * kMiB);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id});
  AddNode();
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().repair_phase.empty(); }));
}

TEST_F(ClusterChunkTest, WhatARepairTookFromAListIsNotConfirmed) {
  options_.copies = 3;
  AddNodes(2);
  const TestChunk chunk = MakeChunk(9600, 300'000);
  Plant(*nodes_[0], chunk, {nodes_[0]->id, nodes_[1]->id});
  Down(*nodes_[1]);  // without the chunk, which nobody knows
  AddNodes(2);
  EXPECT_TRUE(Eventually([&] { return CopiesOf(chunk) >= 2; }));
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().repair_chunks_left == 0; }));
  Put(*nodes_[0], chunk);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(CopiesOf(chunk), 3u);
}

}  // namespace
}  // namespace cairnfs::cluster
