// Reading in a cluster: from whoever has it, verified, repaired.
#include <future>

#include "../../support/eventually.h"
#include "chunk_fixture.h"
#include "cluster/peer_message.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {
namespace {

TEST_F(ClusterChunkTest, AnyNodeReads) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 30);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (auto& node : nodes_) ExpectReads(*node, chunks);
}

TEST_F(ClusterChunkTest, ReadsWhatIsNotDurableYet) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ExpectReads(*nodes_[0], chunks);
}

TEST_F(ClusterChunkTest, UnknownChunkIsNotFound) {
  AddNodes(3);
  auto text = store::GetText(*nodes_[0]->chunks, MakeChunk(77, 1000).digest);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kNotFound);
}

TEST_F(ClusterChunkTest, UnknownChunkWhileANodeIsDownIsUnavailable) {
  AddNodes(3);
  Down(*nodes_[2]);
  auto text = store::GetText(*nodes_[0]->chunks, MakeChunk(77, 1000).digest);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(text.error().message.find("n3"), std::string::npos) << text.error().message;
}

TEST_F(ClusterChunkTest, ReadsWhileTheHomeIsDown) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 24);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Down(*nodes_[1]);
  for (size_t reader : {2, 3}) ExpectReads(*nodes_[reader], chunks);
}

TEST_F(ClusterChunkTest, ReadsWhileTheHomeDoesNotAnswerAndNobodyKnowsYet) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 24);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Stop(*nodes_[1]);
  for (size_t reader : {2, 3}) ExpectReads(*nodes_[reader], chunks);
}

// As when the metadata was away for so long that all sessions have ended.
TEST_F(ClusterChunkTest, ReadsFromNodesThatOnlySeemToBeDown) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 12);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  for (auto& node : nodes_) cluster_.SetState(node->id, NodeState::kDown);
  ExpectReads(*nodes_[2], chunks);
}

TEST_F(ClusterChunkTest, RemoteChunksAreKeptInTheCache) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 60);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  std::vector<TestChunk> remote;
  for (const TestChunk& chunk : chunks) {
    if (!IsHere(*nodes_[1], chunk)) remote.push_back(chunk);
  }
  ASSERT_GT(remote.size(), 5u);
  remote.resize(5);
  ExpectReads(*nodes_[1], remote);
  const uint64_t reads = nodes_[1]->chunks->ClusterStats().remote_reads_total;
  EXPECT_EQ(reads, remote.size());
  ExpectReads(*nodes_[1], remote);
  EXPECT_EQ(nodes_[1]->chunks->ClusterStats().remote_reads_total, reads);
  EXPECT_GE(nodes_[1]->local->Stats().cache_hits_total, remote.size());
}

TEST_F(ClusterChunkTest, ReadersOfOneChunkShareOneFetch) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  size_t index = 0;
  while (IsHere(*nodes_[1], chunks[index])) ++index;
  std::atomic<int> good{0}, left{20};
  std::promise<void> all;
  for (int i = 0; i < 20; ++i) {
    nodes_[1]->chunks->Get(chunks[index].digest, [&](const Result<store::ChunkData>& data) {
      if (data.ok() && data->size == chunks[index].bytes.size()) ++good;
      if (--left == 0) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_EQ(good, 20);
  EXPECT_EQ(nodes_[1]->chunks->ClusterStats().remote_reads_total, 1u);
}

TEST_F(ClusterChunkTest, PrefetchBringsRemoteChunks) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  std::vector<Digest> digests;
  size_t remote = 0;
  for (const TestChunk& chunk : chunks) {
    digests.push_back(chunk.digest);
    remote += IsHere(*nodes_[2], chunk) ? 0 : 1;
  }
  ASSERT_GT(remote, 0u);
  nodes_[2]->chunks->Prefetch(digests);
  EXPECT_TRUE(Eventually([&] { return nodes_[2]->chunks->ClusterStats().remote_reads_total == remote; }));
}

TEST_F(ClusterChunkTest, EachChunkLeavesADiskAboutOnceWhenAllRead) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  uint64_t before = 0;
  for (auto& node : nodes_) {
    node->local->DropCache();
    before += node->local->Stats().disk_read_bytes_total;
  }
  std::vector<std::thread> readers;
  for (size_t i : {1, 2, 3}) readers.emplace_back([&, i] { ExpectReads(*nodes_[i], chunks); });
  for (std::thread& reader : readers) reader.join();
  uint64_t after = 0;
  for (auto& node : nodes_) after += node->local->Stats().disk_read_bytes_total;
  // A holder that is not the home reads its own copy: at R = 2 each chunk lies on one of the readers' disks at most
  // beside its home's, and node 1, which holds all, reads nothing.
  EXPECT_LT(after - before, SizeOf(chunks) * 2);
}

TEST_F(ClusterChunkTest, HostsThatReadTheSameAtOnceReadOneDisk) {
  options_.shared_reads_last = std::chrono::hours(1);  // however slowly they read
  AddNodes(3);
  const auto chunks = MakeChunks(1, 80);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  auto read_from_disks = [&] {
    uint64_t bytes = 0;
    for (auto& node : nodes_) bytes += node->local->Stats().disk_read_bytes_total;
    return bytes;
  };
  for (auto& node : nodes_) node->local->DropCache();
  // One alone that has all reads its own disk.
  ExpectReads(*nodes_[0], chunks);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().remote_reads_total, 0u);
  for (auto& node : nodes_) node->local->DropCache();
  const uint64_t before = read_from_disks();
  for (const TestChunk& chunk : chunks) {
    for (auto& node : nodes_) ExpectReads(*node, {chunk});
  }
  EXPECT_LT(static_cast<double>(read_from_disks() - before), 1.2 * static_cast<double>(SizeOf(chunks)));
}

TEST_F(ClusterChunkTest, ADamagedOwnCopyIsReplaced) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 6);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Damage(*nodes_[0], chunks[3]);
  ExpectReads(*nodes_[0], chunks);
  EXPECT_TRUE(Eventually([&] { return IsHere(*nodes_[0], chunks[3]); }));
  ASSERT_OK(nodes_[0]->chunks->Sync());
  nodes_[0]->local->DropCache();
  auto text = store::GetText(*nodes_[0]->local, chunks[3].digest);
  ASSERT_OK(text);
  EXPECT_TRUE(*text == chunks[3].bytes);
}

size_t ProblemsOf(TestNode& node) {
  size_t count = 0;
  Status checked = node.local->Check({}, [&](const store::CheckProblem&) { ++count; });
  EXPECT_TRUE(checked.ok());
  return count;
}

TEST_F(ClusterChunkTest, ADamagedOwnCopyIsFoundBehindWhatIsInMemory) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectReads(*nodes_[0], chunks);
  DamageOnDisk(*nodes_[0], chunks[3]);
  ExpectReads(*nodes_[0], chunks);
  EXPECT_EQ(nodes_[0]->local->Stats().corrupt_chunks_total, 0u);
  for (const TestChunk& chunk : chunks) {
    std::promise<bool> is_sound;
    nodes_[0]->chunks->GetFromDisk(chunk.digest, [&](Result<store::ChunkData> data) { is_sound.set_value(data.ok()); });
    EXPECT_TRUE(is_sound.get_future().get());
  }
  EXPECT_EQ(nodes_[0]->local->Stats().corrupt_chunks_total, 1u);
  EXPECT_TRUE(Eventually([&] { return ProblemsOf(*nodes_[0]) == 0; }));
}

TEST_F(ClusterChunkTest, ADamagedCopyElsewhereIsPassedOverAndReplaced) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 30);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  // Of one whose home is another node that holds it; node 3 reads.
  size_t index = 0;
  while (&HomeOf(chunks[index]) != nodes_[1].get()) ++index;
  TestNode& holder = *nodes_[1];
  ASSERT_TRUE(IsHere(holder, chunks[index]));
  Damage(holder, chunks[index]);
  ExpectReads(*nodes_[2], {chunks[index]});
  EXPECT_TRUE(Eventually([&] {
    holder.local->DropCache();
    auto text = store::GetText(*holder.local, chunks[index].digest);
    return text.ok() && *text == chunks[index].bytes;
  }));
}

TEST_F(ClusterChunkTest, WhatACheckFindsDamagedIsReplaced) {
  AddNodes(2);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  constexpr size_t kDamaged = 12;
  for (size_t i = 0; i < kDamaged; ++i) Damage(*nodes_[0], chunks[i]);
  EXPECT_EQ(ProblemsOf(*nodes_[0]), kDamaged);
  ASSERT_TRUE(nodes_[0]->chunks->AwaitHealing({}).ok());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, 0u);
  for (const TestChunk& chunk : chunks) EXPECT_TRUE(IsHere(*nodes_[0], chunk));
  EXPECT_GT(nodes_[0]->chunks->ClusterStats().remote_reads_total, 0u);  // the other's repair would have sent them
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(ProblemsOf(*nodes_[0]), 0u);
  Down(*nodes_[1]);
  nodes_[0]->local->DropCache();
  ExpectReads(*nodes_[0], chunks);
}

TEST_F(ClusterChunkTest, WhatACheckFindsDamagedIsMissedUntilAnotherCopyIsThere) {
  AddNodes(2);
  const auto chunks = MakeChunks(1, 3);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Down(*nodes_[1]);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, 0u);
  Damage(*nodes_[0], chunks[1]);
  for (int round = 0; round < 2; ++round) {  // it counts once
    EXPECT_EQ(ProblemsOf(*nodes_[0]), 1u);
    EXPECT_TRUE(nodes_[0]->chunks->AwaitHealing({}).ok());  // it is not waited for longer than to be tried
    EXPECT_FALSE(IsHere(*nodes_[0], chunks[1]));
    EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, 1u);
  }
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually(
      [&] { return nodes_[0]->chunks->ClusterStats().missing_copies == 0 && IsHere(*nodes_[0], chunks[1]); }));
  nodes_[0]->local->DropCache();
  auto text = store::GetText(*nodes_[0]->local, chunks[1].digest);
  ASSERT_OK(text);
  EXPECT_TRUE(*text == chunks[1].bytes);
}

TEST_F(ClusterChunkTest, ANodeThatPutsOffForEverIsPassedOver) {
  AddNodes(3);
  WireCounters counters;
  PeerServer::Options options;
  options.listen = "127.0.0.1:0";
  auto server =
      PeerServer::Start(options, *nodes_[1]->membership, counters,
                        [](PeerMethod, const NodeId&, const PeerMessage& request, const PeerServer::Respond& respond) {
                          auto digests = DecodeDigests(request.head);
                          if (!digests)
                            return respond(MakeError(ErrorCode::kInvalidArgument, "only Get is asked here"));
                          std::vector<GetAnswer> answers(digests->size());
                          for (GetAnswer& answer : answers) answer.kind = GetAnswer::Kind::kLater;
                          respond(PeerMessage{EncodeGetReply(answers), {}});
                        });
  ASSERT_OK(server);
  cluster_.Edit(nodes_[1]->id, [&](NodeInfo& node) { node.address = (*server)->address(); });
  uint64_t seed = 1;
  while (&HomeOf(MakeChunk(seed, 100'000)) != nodes_[1].get()) ++seed;
  const TestChunk chunk = MakeChunk(seed, 100'000);
  Plant(*nodes_[2], chunk, {});
  ExpectReads(*nodes_[0], {chunk});
  nodes_[0]->service.reset();
  Stop(*nodes_[0]);  // its connections
}

TEST_F(ClusterChunkTest, ADamagedOnlyCopyIsCorrupt) {
  options_.copies = 1;
  AddNodes(2);
  const auto chunks = MakeChunks(1, 4);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Damage(*nodes_[0], chunks[1]);
  for (auto& node : nodes_) {
    auto text = store::GetText(*node->chunks, chunks[1].digest);
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace cairnfs::cluster
