// Saving in a cluster: each chunk is stored on as many nodes as asked for, and crosses the network as rarely as it can.
#include <atomic>

#include "base/clock.h"
#include "chunk_fixture.h"
#include "cluster/busy_pause.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {
namespace {

TEST_F(ClusterChunkTest, PutIsDurableOnTwoNodesAfterSync) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
  // Durable: a power cut on every disk takes nothing.
  for (auto& node : nodes_) {
    node->service.reset();
    Stop(*node);
    node->memory.Crash(7);
    Start(*node);
  }
  ExpectCopies(chunks, 2);
  ExpectReads(*nodes_[1], chunks);
}

TEST_F(ClusterChunkTest, CopiesThatGiveWayToWritersAreMadeForASync) {
  options_.writer_pause = options_.writers_first_max = std::chrono::hours(1);
  AddNodes(2);
  ConnectAll();
  const auto chunks = MakeChunks(1, 8);
  PutAll(*nodes_[0], chunks);
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().put_off_total > 0; }));
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().sent_bytes_total, 0u);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, CopiesGiveWayToWritersForAWhile) {
  options_.writer_pause = std::chrono::hours(1);
  AddNodes(2);
  ConnectAll();
  const auto chunks = MakeChunks(1, 8);
  PutAll(*nodes_[0], chunks);
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().unacknowledged_bytes == 0; }));
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, TheWriterHoldsACopyAndTheListsSayWhoElse) {
  AddNodes(4);
  const auto chunks = MakeChunks(10, 12);
  PutAll(*nodes_[2], chunks);
  ASSERT_OK(nodes_[2]->chunks->Sync());
  for (const TestChunk& chunk : chunks) {
    EXPECT_TRUE(IsHere(*nodes_[2], chunk));
    auto holders = ReadHolders(*nodes_[2]->engine, chunk.digest);
    ASSERT_OK(holders);
    ASSERT_TRUE(holders->has_value());
    ASSERT_EQ((*holders)->size(), 2u);
    for (const NodeId& holder : **holders) {
      EXPECT_TRUE(IsHere(NodeOf(holder), chunk));
      auto theirs = ReadHolders(*NodeOf(holder).engine, chunk.digest);
      ASSERT_OK(theirs);
      ASSERT_TRUE(theirs->has_value());
      EXPECT_EQ((*theirs)->size(), 2u);
    }
  }
}

TEST_F(ClusterChunkTest, PuttingAgainSendsNoBytes) {
  AddNodes(3);
  ConnectAll();
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  const uint64_t sent = SentBytes(), wire = WireBytes();
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(WireBytes(), wire);  // confirmed lately: nobody is asked
  for (size_t writer : {1, 2}) {
    PutAll(*nodes_[writer], chunks);
    ASSERT_OK(nodes_[writer]->chunks->Sync());
  }
  EXPECT_EQ(SentBytes(), sent);
  EXPECT_LT(WireBytes() - wire, SizeOf(chunks) / 100);
  ExpectCopies(chunks, 2);
  for (size_t writer : {0, 1, 2}) {
    const ClusterChunkStats stats = nodes_[writer]->chunks->ClusterStats();
    EXPECT_EQ(stats.new_in_cluster_bytes_total, writer == 0 ? SizeOf(chunks) : 0);
    EXPECT_EQ(stats.known_in_cluster_bytes_total, SizeOf(chunks));
  }
}

TEST_F(ClusterChunkTest, WhatIsPutTwiceAtOnceIsNewOnce) {
  AddNodes(2);
  const auto chunks = MakeChunks(1, 20);
  for (int times = 0; times < 3; ++times) PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().new_in_cluster_bytes_total, SizeOf(chunks));
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().known_in_cluster_bytes_total, 2 * SizeOf(chunks));
}

TEST_F(ClusterChunkTest, PuttingAgainAfterARestartSendsNoBytes) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (auto& node : nodes_) Down(*node);
  for (auto& node : nodes_) Start(*node);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(SentBytes(), 0u);
  ExpectCopies(chunks, 2);
}

// What is known is done while its bytes are still on their way to this node's disk, at level `local`.
TEST_F(ClusterChunkTest, AChunkIsCountedOnce) {
  AddNodes(3);
  ConnectAll();
  const auto chunks = MakeChunks(1, 40);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (size_t i : {1, 2}) {
    PutAll(*nodes_[i], chunks);
    ASSERT_OK(SyncLocal(*nodes_[i]));
    ASSERT_OK(nodes_[i]->chunks->Sync());
    Put(*nodes_[i], MakeChunk(1000 + i, 300'000));  // behind the others
    ASSERT_OK(SyncLocal(*nodes_[i]));
    const ClusterChunkStats stats = nodes_[i]->chunks->ClusterStats();
    EXPECT_GE(stats.new_in_cluster_bytes_total + stats.known_in_cluster_bytes_total, SizeOf(chunks));
    EXPECT_LE(stats.new_in_cluster_bytes_total + stats.known_in_cluster_bytes_total, SizeOf(chunks) + 300'000);
  }
}

TEST_F(ClusterChunkTest, RoomIsReservedOnlyUntilAChunkIsDone) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  for (auto& node : nodes_) {  // new on one, known on the others
    PutAll(*node, chunks);
    ASSERT_OK(node->chunks->Sync());
    EXPECT_EQ(node->local->ReservedBytes(), 0U);
  }
}

TEST_F(ClusterChunkTest, NodesThatPutTheSameAtOnceStoreItOnce) {
  AddNodes(4);
  ConnectAll();
  const auto chunks = MakeChunks(1, 60);
  std::vector<std::thread> writers;
  std::atomic<int> failed{0};
  for (auto& node : nodes_) {
    writers.emplace_back([&] {
      PutAll(*node, chunks);
      if (!node->chunks->Sync().ok()) ++failed;
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
  ExpectCopies(chunks, 2);
  EXPECT_EQ(SentBytes(), SizeOf(chunks));  // each chunk once
}

TEST_F(ClusterChunkTest, ACopyThatCountsIsInTheLists) {
  AddNodes(2);
  const auto chunks = MakeChunks(1, 20);
  TestNode& writer = *nodes_[0];
  for (const TestChunk& chunk : chunks) {
    TestNode& home = HomeOf(chunk);
    TestNode& other = &home == &writer ? *nodes_[1] : writer;
    Plant(home, chunk, {home.id});
    Plant(other, chunk, {});  // of which nobody knows
  }
  PutAll(writer, chunks);
  ASSERT_OK(writer.chunks->Sync());
  for (const TestChunk& chunk : chunks) {
    for (auto& node : nodes_) EXPECT_TRUE(Eventually([&] { return ListOf(*node, chunk).size() == 2; }));
  }
}

TEST_F(ClusterChunkTest, ThreeCopies) {
  options_.copies = 3;
  AddNodes(4);
  ConnectAll();
  const auto chunks = MakeChunks(1, 20);
  std::vector<std::thread> writers;
  for (size_t i : {0, 1}) {
    writers.emplace_back([&, i] {
      PutAll(*nodes_[i], chunks);
      EXPECT_TRUE(nodes_[i]->chunks->Sync().ok());
    });
  }
  for (std::thread& writer : writers) writer.join();
  ExpectCopies(chunks, 3);
  EXPECT_EQ(SentBytes(), 2 * SizeOf(chunks));
}

TEST_F(ClusterChunkTest, FramingIsBelowTwoPercent) {
  AddNodes(3);
  ConnectAll();
  const auto chunks = MakeChunks(1, 200);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(SentBytes(), SizeOf(chunks));
  // What is under way is counted as sent and not as received yet, but no chunk is.
  const uint64_t received = WireReceivedBytes(), sent = WireBytes();
  EXPECT_GT(received, SizeOf(chunks));
  EXPECT_LE(received, sent);
  EXPECT_LE(static_cast<double>(sent), 1.02 * static_cast<double>(SizeOf(chunks)));
}

TEST_F(ClusterChunkTest, OnlyTheFirstOfTwoPutsIsNew) {
  AddNodes(2);
  const TestChunk chunk = MakeChunk(5, 100'000);
  io::Slice slice;
  slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
  slice.size = chunk.bytes.size();
  auto first = nodes_[0]->chunks->Put(chunk.digest, {&slice, 1});
  ASSERT_OK(first);
  EXPECT_TRUE(first->is_new);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  auto second = nodes_[0]->chunks->Put(chunk.digest, {&slice, 1});
  ASSERT_OK(second);
  EXPECT_FALSE(second->is_new);
  EXPECT_EQ(second->pin.digest(), chunk.digest);
}

TEST_F(ClusterChunkTest, TheCallersMemoryIsFreeAfterPut) {
  AddNodes(2);
  TestChunk chunk = MakeChunk(5, 400'000);
  const std::string bytes = chunk.bytes;
  Put(*nodes_[0], chunk);
  std::fill(chunk.bytes.begin(), chunk.bytes.end(), 'x');
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (auto& node : nodes_) {
    auto text = store::GetText(*node->local, chunk.digest);
    ASSERT_OK(text);
    EXPECT_TRUE(*text == bytes);
  }
}

TEST_F(ClusterChunkTest, ChunksOfASingleHostGetTheirCopies) {
  AddNodes(2);
  const TestChunk chunk = MakeChunk(9, 300'000);
  io::Slice slice;
  slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
  slice.size = chunk.bytes.size();
  ASSERT_OK(nodes_[0]->local->Put(chunk.digest, {&slice, 1}));
  ASSERT_OK(nodes_[0]->local->Sync());
  Put(*nodes_[0], chunk);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(CopiesOf(chunk), 2u);
}

TEST_F(ClusterChunkTest, BuffersAreGivenBackAndTheWindowBoundsWhatIsTaken) {
  options_.window_bytes_per_peer = 8 * kMiB;
  AddNodes(2);
  ConnectAll();
  TestNode& writer = *nodes_[0];
  // Many times the pool, in its buffers, as fast as they come back.
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < 150; ++i) {
    io::BufferRef buffer = writer.pool->Acquire();
    ASSERT_TRUE(buffer);
    const TestChunk chunk = MakeChunk(i, kMiB);
    std::memcpy(buffer.payload(), chunk.bytes.data(), chunk.bytes.size());
    io::Slice slice{buffer, buffer.payload(), chunk.bytes.size()};
    ASSERT_OK(writer.chunks->Put(chunk.digest, {&slice, 1}));
    bytes += chunk.bytes.size();
  }
  ASSERT_OK(writer.chunks->Sync());
  EXPECT_EQ(SentBytes(), bytes);
  writer.local->DropCache();
  EXPECT_TRUE(Eventually([&] { return writer.pool->free_count() == writer.pool->count(); }));
}

// What it refuses has crossed the network for nothing, and pushes out what others send it.
TEST_F(ClusterChunkTest, ABusyNodeIsAskedMoreAndMoreRarely) {
  AddNodes(2);
  constexpr int kRefusedMax = 16;
  std::atomic<int> refused{0};
  std::atomic<Clock::time_point> first{}, last{};
  WireCounters counters;
  PeerServer::Options options;
  options.listen = "127.0.0.1:0";
  auto server = PeerServer::Start(
      options, *nodes_[1]->membership, counters,
      [&](PeerMethod method, const NodeId& caller, PeerMessage request, PeerServer::Respond respond) {
        if (method != PeerMethod::kPut || refused >= kRefusedMax) {
          return nodes_[1]->chunks->peer().Handle(method, caller, std::move(request), std::move(respond));
        }
        last = Clock::Now();
        if (++refused == 1) first = last.load();
        respond(MakeError(ErrorCode::kBusy, "too many chunks"));
      });
  ASSERT_OK(server);
  cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = (*server)->address(); });
  const auto chunks = MakeChunks(1, 24, kMiB);  // several messages
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks, 2);
  EXPECT_GE(refused, kRefusedMax);
  // First those that are under way, nine at most; then one at a time, after 25 ms, 50, 100 and 200 at least.
  EXPECT_GE(last.load() - first.load(), std::chrono::milliseconds(25 + 50 + 100 + 200));
  nodes_[0]->service.reset();
  Stop(*nodes_[0]);  // its connections
}

TEST(BusyPauseTest, GoesOnSlowlyAndThenFaster) {
  BusyPause busy;
  auto now = Clock::Now();
  EXPECT_TRUE(busy.MaySend(now, 1000));
  busy.NoteBusy(now);
  busy.NoteBusy(now);  // sent together with the first
  EXPECT_FALSE(busy.MaySend(now + std::chrono::milliseconds(24), 0));
  EXPECT_TRUE(busy.MaySend(now + std::chrono::milliseconds(51), 0));
  EXPECT_FALSE(busy.MaySend(now + std::chrono::milliseconds(51), 1)) << "one finds out";
  for (int i = 0; i < 20; ++i) {
    now += std::chrono::seconds(2);
    busy.NoteBusy(now);
  }
  EXPECT_FALSE(busy.MaySend(now + std::chrono::milliseconds(499), 0));
  now += std::chrono::milliseconds(1001);
  EXPECT_TRUE(busy.MaySend(now, 0));
  busy.NoteTaken();
  EXPECT_TRUE(busy.MaySend(now, 1));
  EXPECT_FALSE(busy.MaySend(now, 2));
  for (int i = 0; i < 5; ++i) busy.NoteTaken();
  EXPECT_TRUE(busy.MaySend(now, 1000));
}

}  // namespace
}  // namespace cairnfs::cluster
