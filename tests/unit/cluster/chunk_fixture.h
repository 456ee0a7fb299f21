// Several nodes in one process: each with a disk and an engine in memory, a chunk store, and a peer service on a port
// of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../support/eventually.h"
#include "../../support/own_address.h"
#include "base/log.h"
#include "chunking/digest.h"
#include "cluster/chunk_server.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster/holder_lists.h"
#include "cluster/peer_message.h"
#include "cluster/placement.h"
#include "fake_membership.h"
#include "io/faulty_disk.h"
#include "io/memory_disk.h"
#include "store/chunk_index_format.h"
#include "store/local_chunk_store.h"
#include "store/segment_format.h"

namespace cairnfs::cluster {

#define ASSERT_OK(expression)                                                                                         \
  do {                                                                                                                \
    auto&& assert_ok_result = (expression);                                                                           \
    ASSERT_TRUE(assert_ok_result.ok()) << #expression << ": " << ErrorCodeName(assert_ok_result.error().code) << ": " \
                                       << assert_ok_result.error().message;                                           \
  } while (false)

struct TestChunk {
  std::string bytes;
  Digest digest;
};

inline TestChunk MakeChunk(uint64_t seed, size_t size) {
  TestChunk chunk;
  chunk.bytes.resize(size);
  std::mt19937_64 random(seed * 1'000'003 + size);
  for (size_t at = 0; at + 8 <= size; at += 8) {
    const uint64_t word = random();
    std::memcpy(chunk.bytes.data() + at, &word, 8);
  }
  // Nodes know no owners: chunks of several of them are as good as those of none.
  chunk.digest = chunking::NameBytes({static_cast<uint32_t>(seed % 3)}, AsBytes(chunk.bytes));
  return chunk;
}

inline std::vector<TestChunk> MakeChunks(uint64_t first_seed, size_t count, size_t size = 300'000) {
  std::vector<TestChunk> chunks;
  for (size_t i = 0; i < count; ++i) chunks.push_back(MakeChunk(first_seed + i, size + 8 * i));
  return chunks;
}

struct TestNode {
  NodeId id;
  io::MemoryDisk memory;
  io::FaultyDisk disk{memory};
  std::unique_ptr<kv::KvEngine> engine = kv::OpenMemoryEngine();
  std::unique_ptr<io::BufferPool> pool;
  std::unique_ptr<store::LocalChunkStore> local;
  std::unique_ptr<FakeMembership> membership;
  std::unique_ptr<ClusterChunkStore> chunks;
  std::unique_ptr<PeerService> service;

  explicit TestNode(uint64_t disk_bytes) : memory(io::MemoryDisk::Options{.size_bytes = disk_bytes}) {
    auto made = io::BufferPool::Create({.size_bytes_max = 48 * kMiB, .reserved_count = 4});
    EXPECT_TRUE(made.ok());
    pool = std::move(made).value();
  }
};

class ClusterChunkTest : public ::testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override {
    // Those that others still talk to go last or first alike; all services before all stores is the hard order.
    for (auto& node : nodes_) node->service.reset();
    for (auto& node : nodes_) Stop(*node);
    nodes_.clear();
    spdlog::set_level(spdlog::level::info);
  }

  static store::StoreOptions StoreOptionsForTests() {
    store::StoreOptions options;
    options.segment_bytes = 4 * kMiB;
    options.free_segments_bytes_max = 8 * kMiB;
    options.reserve_bytes = kMiB;
    options.verify_threads = 1;
    return options;
  }

  TestNode& AddNode(uint64_t disk_bytes = 512 * kMiB, std::string domain = "") {
    auto node = std::make_unique<TestNode>(disk_bytes);
    const uint64_t number = nodes_.size() + 1;
    for (size_t i = 0; i < NodeId::kBytes; ++i) node->id.bytes[i] = static_cast<std::byte>(number * 31 + i * 7);
    NodeInfo info;
    info.id = node->id;
    info.name = "n" + std::to_string(number);
    info.domain = std::move(domain);
    info.state = NodeState::kDown;
    cluster_.Add(info);
    nodes_.push_back(std::move(node));
    Start(*nodes_.back());
    return *nodes_.back();
  }
  void AddNodes(size_t count) {
    for (size_t i = 0; i < count; ++i) AddNode();
  }

  void Start(TestNode& node) {
    auto local = store::LocalChunkStore::Open(node.disk, *node.engine, *node.pool, StoreOptionsForTests());
    ASSERT_OK(local);
    node.local = std::move(local).value();
    node.membership = std::make_unique<FakeMembership>(cluster_, node.id);
    node.chunks = ClusterChunkStore::Create(*node.local, *node.engine, *node.pool, *node.membership, options_);
    PeerService::Options options;
    options.listen = OwnAddress() + ":0";
    auto service = PeerService::Start(options, *node.chunks, *node.membership);
    ASSERT_OK(service);
    node.service = std::move(service).value();
    cluster_.Edit(node.id, [&](NodeInfo& info) {
      info.address = node.service->address();
      info.state = NodeState::kUp;
      info.session++;
    });
  }
  // Without a word to the others: they find out by themselves.
  void Stop(TestNode& node) {
    node.service.reset();
    node.chunks.reset();
    node.membership.reset();
    node.local.reset();
  }
  void Down(TestNode& node) {
    Stop(node);
    cluster_.SetState(node.id, NodeState::kDown);
  }

  // Makes the connections between all nodes, which may take long on a busy machine.
  void ConnectAll() {
    for (auto& from : nodes_) {
      for (auto& to : nodes_) {
        if (from == to) continue;
        unsigned in_a_row = 0;  // each call takes the next connection
        EXPECT_TRUE(Eventually([&] {
          in_a_row = Answers(*from, *to) ? in_a_row + 1 : 0;
          return in_a_row == options_.connections_per_peer;
        }));
      }
    }
  }
  static bool Answers(TestNode& from, TestNode& to) {
    std::promise<bool> answered;
    from.chunks->peer().client().Call(to.id, PeerMethod::kConfirm, {EncodeDigests({Digest()}), {}},
                                      std::chrono::seconds(20),
                                      [&](const Result<PeerMessage>& reply) { answered.set_value(reply.ok()); });
    return answered.get_future().get();
  }

  static void Put(TestNode& node, const TestChunk& chunk) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    ASSERT_OK(node.chunks->Put(chunk.digest, {&slice, 1}));
  }
  static void PutAll(TestNode& node, const std::vector<TestChunk>& chunks) {
    for (const TestChunk& chunk : chunks) Put(node, chunk);
  }
  // On the node's disk alone, with this list of who else is said to have it (none: no list).
  static void Plant(TestNode& node, const TestChunk& chunk, const Holders& list) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    ASSERT_OK(node.local->Put(chunk.digest, {&slice, 1}));
    ASSERT_OK(node.local->Sync());
    std::vector<kv::EngineWrite> writes;
    if (!list.empty()) writes.push_back({HolderKey(chunk.digest), EncodeHolders(list)});
    ASSERT_OK(node.engine->Write(writes, kv::WriteMode::kSynced));
  }
  static Holders ListOf(TestNode& node, const TestChunk& chunk) {
    auto holders = ReadHolders(*node.engine, chunk.digest);
    return holders.ok() && holders->has_value() ? **holders : Holders{};
  }
  static bool IsHere(TestNode& node, const TestChunk& chunk) {
    return node.local != nullptr && node.local->HasSound({&chunk.digest, 1})[0];
  }
  size_t CopiesOf(const TestChunk& chunk) {
    size_t copies = 0;
    for (auto& node : nodes_) copies += IsHere(*node, chunk) ? 1 : 0;
    return copies;
  }
  void ExpectCopies(const std::vector<TestChunk>& chunks, size_t copies) {
    for (const TestChunk& chunk : chunks) EXPECT_EQ(CopiesOf(chunk), copies);
  }
  static void ExpectReads(TestNode& node, const std::vector<TestChunk>& chunks) {
    for (const TestChunk& chunk : chunks) {
      auto text = store::GetText(*node.chunks, chunk.digest);
      ASSERT_OK(text);
      EXPECT_TRUE(*text == chunk.bytes);
    }
  }
  uint64_t SentBytes() {
    uint64_t bytes = 0;
    for (auto& node : nodes_) bytes += node->chunks ? node->chunks->ClusterStats().sent_bytes_total : 0;
    return bytes;
  }
  uint64_t WireReceivedBytes() {
    uint64_t bytes = 0;
    for (auto& node : nodes_) bytes += node->chunks ? node->chunks->ClusterStats().wire_received_bytes_total : 0;
    return bytes;
  }
  uint64_t WireBytes() {
    uint64_t bytes = 0;
    for (auto& node : nodes_) bytes += node->chunks ? node->chunks->ClusterStats().wire_sent_bytes_total : 0;
    return bytes;
  }
  TestNode& NodeOf(const NodeId& id) {
    for (auto& node : nodes_) {
      if (node->id == id) return *node;
    }
    std::abort();
  }
  TestNode& HomeOf(const TestChunk& chunk) { return NodeOf(First(*cluster_.view(), chunk.digest, 1)[0]->id); }
  // One bit in the chunk's bytes on the node's disk is wrong from now on; nothing of it is in memory.
  static void Damage(TestNode& node, const TestChunk& chunk) {
    DamageOnDisk(node, chunk);
    node.local->DropCache();
  }
  static void DamageOnDisk(TestNode& node, const TestChunk& chunk) {
    auto value = node.engine->Get(store::ChunkKey(chunk.digest));
    ASSERT_TRUE(value.ok() && value->has_value());
    const store::Location location = *store::DecodeLocation(**value);
    const std::string name = store::MakeSegmentName(store::SegmentName::kSegment, location.segment);
    ASSERT_TRUE(node.memory.FlipBit(name, (location.data_offset() + 100) * 8));
  }
  // A chunk that was put, and its bytes, which live for as long as the store keeps them in memory.
  struct Kept {
    store::ChunkPin pin;
    std::weak_ptr<std::byte[]> bytes;
  };
  static Kept PutKept(TestNode& node, const TestChunk& chunk) {
    std::shared_ptr<std::byte[]> bytes(new std::byte[chunk.bytes.size()]);
    std::memcpy(bytes.get(), chunk.bytes.data(), chunk.bytes.size());
    const io::Slice slice{{}, bytes.get(), chunk.bytes.size(), bytes};
    auto result = node.chunks->Put(chunk.digest, {&slice, 1});
    EXPECT_TRUE(result.ok());
    return {result.ok() ? std::move(result->pin) : store::ChunkPin(), bytes};
  }
  // At level `local`.
  static Status SyncLocal(TestNode& node) {
    const auto unreadable = node.chunks->SyncReadable({}, ClusterChunkStore::SyncScope::kThisNode);
    if (!unreadable.ok()) return unreadable.error();
    return unreadable->empty() ? Status() : unreadable->begin()->second;
  }
  static std::vector<Kept> PutAllKept(TestNode& node, const std::vector<TestChunk>& chunks) {
    std::vector<Kept> kept;
    for (const TestChunk& chunk : chunks) kept.push_back(PutKept(node, chunk));
    return kept;
  }
  // Buffers are short until these have left memory.
  static void LetLeaveMemory(TestNode& node, const std::vector<std::weak_ptr<std::byte[]>>& chunks) {
    std::vector<io::BufferRef> buffers;
    while (io::BufferRef buffer = node.pool->TryAcquire()) buffers.push_back(std::move(buffer));
    EXPECT_TRUE(Eventually(
        [&] { return std::all_of(chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.expired(); }); }));
  }
  static uint64_t SizeOf(const std::vector<TestChunk>& chunks) {
    uint64_t size = 0;
    for (const TestChunk& chunk : chunks) size += chunk.bytes.size();
    return size;
  }

  FakeCluster cluster_;
  ClusterChunkOptions options_ = [] {
    ClusterChunkOptions options;
    options.sync_wait_max = std::chrono::seconds(60);
    // On a busy machine a node that is slow must not count as down: others would get what it was to get. One that is
    // gone refuses connections at once.
    options.timeouts.connect = std::chrono::seconds(20);
    options.timeouts.ask *= 10;
    options.timeouts.ask_and_hold *= 10;
    options.timeouts.confirm *= 10;
    options.timeouts.has *= 10;
    options.timeouts.silent *= 10;
    return options;
  }();
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

}  // namespace cairnfs::cluster
