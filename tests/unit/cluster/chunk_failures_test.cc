// What goes wrong: nodes that are down, full, gone.
#include "../../support/eventually.h"
#include "base/clock.h"
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

TEST_F(ClusterChunkTest, SavesWhileTheHomeIsDown) {
  AddNodes(4);
  Down(*nodes_[3]);
  const auto chunks = MakeChunks(1, 30);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, SavesWhileANodeDoesNotAnswerAndNobodyKnowsYet) {
  AddNodes(4);
  Stop(*nodes_[3]);
  const auto chunks = MakeChunks(1, 30);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, ATargetThatGoesInTheMiddleIsReplaced) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 120);
  std::thread killer([&] {
    Eventually([&] { return nodes_[1]->chunks->ClusterStats().received_bytes_total > 0; });
    Down(*nodes_[1]);
  });
  PutAll(*nodes_[0], chunks);
  const Status synced = nodes_[0]->chunks->Sync();
  killer.join();
  ASSERT_OK(synced);
  // Synced: each chunk has two copies, on disks that are there, whether the node that went counts among them or not.
  Start(*nodes_[1]);
  for (const TestChunk& chunk : chunks) EXPECT_GE(CopiesOf(chunk), 2u);
}

TEST_F(ClusterChunkTest, AFullNodeIsSkipped) {
  AddNodes(2);
  AddNode(/*disk_bytes=*/12 * kMiB);
  const auto chunks = MakeChunks(1, 80, 500'000);  // 40 MB: a third would not fit
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, AFullWriterStoresOnTheOthers) {
  AddNode(/*disk_bytes=*/12 * kMiB);
  AddNodes(2);
  const auto chunks = MakeChunks(1, 80, 500'000);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
  ExpectReads(*nodes_[0], chunks);
  EXPECT_TRUE(Eventually([&] { return cluster_.view()->Find(nodes_[0]->id)->full; }));
}

// Whichever holder's part it is to make the missing copies counts them.
TEST_F(ClusterChunkTest, AllHoldersOfAChunkThatLacksCopiesKnow) {
  options_.copies = 3;
  options_.min_replicas = 2;
  AddNodes(3);
  Down(*nodes_[2]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_TRUE(Eventually([&] {
    const uint64_t of_writer = nodes_[0]->chunks->ClusterStats().missing_copies;
    const uint64_t of_other = nodes_[1]->chunks->ClusterStats().missing_copies;
    return of_other > 0 && of_writer + of_other >= chunks.size();
  }));
  Start(*nodes_[2]);
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 3; });
  }));
  for (auto& node : nodes_) {
    EXPECT_TRUE(Eventually([&] { return node->chunks->ClusterStats().missing_copies == 0; }));
  }
}

// The node died a moment ago, and its session has not ended. The holder whose part it is to make the copies does not
// know that they are missing, so the writer must go on to count them.
TEST_F(ClusterChunkTest, AWriterCountsMissingCopiesWhileTheNodeStillSeemsUp) {
  options_.copies = 3;
  options_.min_replicas = 2;
  AddNodes(3);
  Stop(*nodes_[2]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (int i = 0; i < 20; ++i) {
    // All look at all chunks then.
    if (i == 10) cluster_.Edit(nodes_[1]->id, [](NodeInfo& info) { info.weight *= 2; });
    EXPECT_GE(nodes_[0]->chunks->ClusterStats().missing_copies, chunks.size()) << "at look " << i;
    Clock::SleepFor(std::chrono::milliseconds(100));
  }
}

TEST_F(ClusterChunkTest, MinReplicasLetsASaveGoOnAndRepairCatchesUp) {
  options_.min_replicas = 1;
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 1);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, chunks.size());
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().missing_copies == 0; }));
}

TEST_F(ClusterChunkTest, MissingCopiesAreKnownAgainAfterARestart) {
  options_.min_replicas = 1;
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Down(*nodes_[0]);
  Start(*nodes_[0]);
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().knows_missing_copies; }));
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, chunks.size());
}

TEST_F(ClusterChunkTest, MinReplicasDoesNotSaveCopiesWhileNodesAreThere) {
  options_.min_replicas = 1;
  AddNodes(3);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, AChunkThatLostItsListGetsOneWhenItIsAskedFor) {
  AddNodes(3);
  const TestChunk chunk = MakeChunk(9700, 300'000);
  for (auto& node : nodes_) Plant(*node, chunk, {});
  Put(*nodes_[0], chunk);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (auto& node : nodes_) ASSERT_OK(SyncLocal(*node));
  size_t lists = 0;
  for (auto& node : nodes_) lists += ListOf(*node, chunk).empty() ? 0 : 1;
  EXPECT_GE(lists, 2u);
}

TEST_F(ClusterChunkTest, WhatFellShortForAMomentIsToppedUpWithoutNews) {
  options_.min_replicas = 1;
  AddNodes(2);
  const std::string address = nodes_[1]->service->address();
  nodes_[1]->service.reset();
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 1);
  PeerService::Options options;
  options.listen = address;
  auto service = PeerService::Start(options, *nodes_[1]->chunks, *nodes_[1]->membership);
  ASSERT_OK(service);
  nodes_[1]->service = std::move(service).value();
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
}

TEST_F(ClusterChunkTest, AFullHomeTellsThoseThatWait) {
  options_.claim_time_max = std::chrono::hours(1);  // longer than a Sync waits
  AddNodes(4);
  ConnectAll();
  cluster_.Edit(nodes_[3]->id, [](NodeInfo& node) { node.full = true; });
  const auto chunks = MakeChunks(1, 40);
  std::vector<std::thread> writers;
  for (size_t i : {0, 1, 2}) {
    writers.emplace_back([&, i] {
      PutAll(*nodes_[i], chunks);
      EXPECT_TRUE(nodes_[i]->chunks->Sync().ok());
    });
  }
  for (std::thread& writer : writers) writer.join();
  ExpectCopies(chunks, 2);
  EXPECT_EQ(SentBytes(), SizeOf(chunks));
  for (const TestChunk& chunk : chunks) EXPECT_FALSE(IsHere(*nodes_[3], chunk));
}

TEST_F(ClusterChunkTest, ANewHomeIsToldWhatThereIs) {
  AddNodes(3);
  ConnectAll();
  const auto chunks = MakeChunks(1, 60);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  TestNode& added = AddNode();
  ConnectAll();
  size_t homes = 0;
  for (const TestChunk& chunk : chunks) {
    if (&HomeOf(chunk) != &added) continue;
    ++homes;
    EXPECT_TRUE(Eventually([&] {
      if (!added.chunks->Sync().ok()) return false;
      auto holders = ReadHolders(*added.engine, chunk.digest);
      return holders.ok() && holders->has_value() && (*holders)->size() == 2;
    }));
  }
  ASSERT_GT(homes, 0u);
  const uint64_t sent = SentBytes();
  PutAll(*nodes_[1], chunks);
  ASSERT_OK(nodes_[1]->chunks->Sync());
  EXPECT_EQ(SentBytes(), sent);
  ExpectCopies(chunks, 2);
}

// It was gone and is back between two looks at the nodes, and has lost what it had acknowledged.
TEST_F(ClusterChunkTest, WhatANodeSaidBeforeItsRestartCountsNoMore) {
  options_.copies = 3;
  AddNodes(3);
  TestNode& restarted = *nodes_[1];
  Down(*nodes_[2]);
  const auto chunks = MakeChunks(1, 5);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(SyncLocal(*nodes_[0]));
  for (const TestChunk& chunk : chunks) {
    EXPECT_TRUE(Eventually([&] { return IsHere(restarted, chunk); }));
  }
  EXPECT_TRUE(Answers(*nodes_[0], restarted));
  Stop(restarted);
  for (const TestChunk& chunk : chunks) {
    ASSERT_OK(restarted.engine->Write({{store::ChunkKey(chunk.digest), std::nullopt}}, kv::WriteMode::kSynced));
  }
  Start(restarted);
  Start(*nodes_[2]);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 3);
}

// Each asks the other for a sound one, and is asked itself.
TEST_F(ClusterChunkTest, WhatIsDamagedOnBothIsNotReadAgainAndAgain) {
  AddNodes(3);
  uint64_t seed = 1;  // the third is asked first, and has none
  while (&HomeOf(MakeChunk(seed, 300'000)) != nodes_[2].get()) ++seed;
  const TestChunk chunk = MakeChunk(seed, 300'000);
  const Holders both{nodes_[0]->id, nodes_[1]->id};
  for (size_t i = 0; i < 2; ++i) {
    Plant(*nodes_[i], chunk, both);
    Damage(*nodes_[i], chunk);
  }
  auto text = store::GetText(*nodes_[0]->chunks, chunk.digest);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
  auto bytes_read = [&] {
    uint64_t bytes = 0;
    for (auto& node : nodes_) bytes += node->local->Stats().disk_read_bytes_total;
    return bytes;
  };
  const uint64_t before = bytes_read();
  Clock::SleepFor(std::chrono::seconds(1));
  EXPECT_LT(bytes_read() - before, 20 * chunk.bytes.size());
}

}  // namespace
}  // namespace cairnfs::cluster
