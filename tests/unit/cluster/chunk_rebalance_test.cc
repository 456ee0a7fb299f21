// Rebalancing: copies move to the nodes that should have them, and those that are too many go.
#include <map>

#include "base/clock.h"
#include "chunk_fixture.h"
#include "cluster/balance.h"

namespace cairnfs::cluster {
namespace {

class RebalanceTest : public ClusterChunkTest {
 protected:
  RebalanceTest() {
    options_.stored_bytes = [this](const Context&) {
      StoredBytes stored;
      MutexLock lock(mutex_);
      // Of so few bytes nobody would give any away.
      for (const auto& [id, local] : stores_) stored[id] = local->Stats().unique_bytes * 1000;
      return std::optional<StoredBytes>(std::move(stored));
    };
  }
  void TearDown() override {
    {
      MutexLock lock(mutex_);
      stores_.clear();
    }
    ClusterChunkTest::TearDown();
  }
  void AddNode(uint64_t disk_bytes = 512 * kMiB) {
    ClusterChunkTest::AddNode(disk_bytes);
    Tell(*nodes_.back());
  }
  void AddNodes(size_t count) {
    for (size_t i = 0; i < count; ++i) AddNode();
  }
  void Start(TestNode& node) {
    ClusterChunkTest::Start(node);
    Tell(node);
  }
  void Down(TestNode& node) {
    {
      MutexLock lock(mutex_);
      stores_.erase(node.id);
    }
    ClusterChunkTest::Down(node);
  }
  void SetWeight(TestNode& node, double weight) {
    cluster_.Edit(node.id, [&](NodeInfo& info) { info.weight = weight; });
  }
  bool IsIdle(TestNode& node) {
    const ClusterChunkStats stats = node.chunks->ClusterStats();
    return stats.knows_missing_copies && stats.repair_phase.empty();
  }
  static Result<store::PutResult> TryPut(TestNode& node, const TestChunk& chunk) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    return node.chunks->Put(chunk.digest, {&slice, 1});
  }
  static uint64_t CountHere(TestNode& node) { return node.local->Stats().chunk_count; }

 private:
  void Tell(TestNode& node) {
    MutexLock lock(mutex_);
    stores_[node.id] = node.local.get();
  }
  Mutex mutex_;
  std::map<NodeId, store::LocalChunkStore*> stores_ GUARDED_BY(mutex_);
};

TEST_F(RebalanceTest, ANewNodeGetsItsShare) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 60);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  AddNode();
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[3]) >= 2 * chunks.size() / 4 - 10; }));
  for (auto& node : nodes_) {
    EXPECT_TRUE(Eventually([&] { return IsIdle(*node); }));
  }
  ExpectCopies(chunks, 2);
  for (auto& node : nodes_) ExpectReads(*node, chunks);
  // Who has them is known where it is asked for: saving them again sends nothing.
  const uint64_t sent = SentBytes();
  PutAll(*nodes_[3], chunks);
  ASSERT_OK(nodes_[3]->chunks->Sync());
  EXPECT_EQ(SentBytes(), sent);
}

TEST_F(RebalanceTest, OneThatSavesKeepsItsCopiesWhileAllHaveTheirShares) {
  // Of so few chunks the true numbers are never within the slack.
  options_.stored_bytes = [this](const Context&) {
    StoredBytes stored;
    for (const NodeInfo& node : cluster_.view()->nodes) stored[node.id] = kGiB;
    return std::optional<StoredBytes>(std::move(stored));
  };
  AddNodes(4);
  const auto chunks = MakeChunks(1, 40);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Down(*nodes_[0]);
  Start(*nodes_[0]);
  EXPECT_TRUE(Eventually([&] { return IsIdle(*nodes_[0]); }));
  for (const TestChunk& chunk : chunks) EXPECT_TRUE(IsHere(*nodes_[0], chunk));
}

TEST_F(RebalanceTest, ANodeOfWeightZeroGivesEverythingAway) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 40);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_GT(CountHere(*nodes_[0]), 0u);
  SetWeight(*nodes_[0], 0);
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[0]) == 0; }));
  ExpectCopies(chunks, 2);
  ExpectReads(*nodes_[0], chunks);
  // And back.
  SetWeight(*nodes_[0], 1);
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[0]) >= 10; }));
}

TEST_F(RebalanceTest, ADrainedNodeSaysThatItIsEmptyAndTakesNothing) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 40);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ASSERT_OK(nodes_[1]->membership->SetDrain(nodes_[0]->id, Membership::Drain::kBegin));
  auto is_empty = [&] { return cluster_.view()->Find(nodes_[0]->id)->is_empty; };
  EXPECT_FALSE(is_empty());
  EXPECT_TRUE(Eventually(is_empty));
  EXPECT_EQ(CountHere(*nodes_[0]), 0u);
  // What is saved there at level local lies on others; and one that does not know of the drain yet is refused.
  const auto after = MakeChunks(1000, 20);
  PutAll(*nodes_[0], after);
  ASSERT_OK(SyncLocal(*nodes_[0]));
  ExpectCopies(after, 2);
  std::vector<NodeInfo> seen = cluster_.view()->nodes;
  for (NodeInfo& info : seen) {
    info.weight = info.id == nodes_[0]->id ? 1000 : 1;
    if (info.id == nodes_[0]->id) info.drain = 0;
  }
  nodes_[1]->membership->SetOwnView(std::make_shared<const View>(std::move(seen), 1));
  const auto late = MakeChunks(2000, 10);
  PutAll(*nodes_[1], late);
  ASSERT_OK(nodes_[1]->chunks->Sync());
  ExpectCopies(late, 2);
  EXPECT_EQ(CountHere(*nodes_[0]), 0u);
  EXPECT_TRUE(is_empty());
  nodes_[1]->membership->SetOwnView(nullptr);
  ASSERT_OK(nodes_[1]->membership->SetDrain(nodes_[0]->id, Membership::Drain::kCancel));
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[0]) > 0; }));
}

TEST_F(RebalanceTest, ItGoesOnAfterTheNodeWasAway) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 60);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  nodes_[0]->chunks->SetRepairRate(kMiB);  // so that it is seen in the middle
  SetWeight(*nodes_[0], 0);
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().repair_bytes_total > 0; }));
  Down(*nodes_[0]);
  Start(*nodes_[0]);
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[0]) == 0; }));
  ExpectCopies(chunks, 2);
}

TEST_F(RebalanceTest, ThreeFullNodesMakeRoomOnceThereIsAFourth) {
  for (int i = 0; i < 3; ++i) AddNode(128 * kMiB);
  uint64_t seed = 1;
  std::vector<TestChunk> saved;
  for (bool has_room = true; has_room;) {
    const auto chunks = MakeChunks(seed, 8);
    seed += chunks.size();
    std::vector<store::ChunkPin> pins;
    for (const TestChunk& chunk : chunks) {
      auto put = TryPut(*nodes_[0], chunk);
      has_room = has_room && put.ok();
      if (put.ok()) pins.push_back(std::move(put->pin));
    }
    has_room = has_room && nodes_[0]->chunks->Sync().ok();
    if (has_room) saved.insert(saved.end(), chunks.begin(), chunks.end());
  }
  EXPECT_TRUE(Eventually([&] {
    const ViewPtr view = cluster_.view();
    return std::count_if(view->nodes.begin(), view->nodes.end(), [](const auto& node) { return node.full; }) >= 2;
  }));
  AddNode(kGiB);
  SetWeight(*nodes_[3], 64);
  const auto after = MakeChunks(100'000, 20);
  EXPECT_TRUE(Eventually([&] {
    std::vector<store::ChunkPin> pins;
    for (const TestChunk& chunk : after) {
      auto put = TryPut(*nodes_[0], chunk);
      if (!put.ok()) return false;
      pins.push_back(std::move(put->pin));
    }
    return nodes_[0]->chunks->Sync().ok();
  }));
  for (const TestChunk& chunk : saved) EXPECT_GE(CopiesOf(chunk), 2u);
  ExpectReads(*nodes_[3], saved);
}

// A list says that two others have it, and one of them has it not, nor room for it.
TEST_F(RebalanceTest, OnlyWhatTheOthersSayThatTheyHaveIsFreed) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 10);
  const Holders list = {nodes_[0]->id, nodes_[1]->id, nodes_[2]->id};
  for (auto& node : nodes_) Down(*node);
  cluster_.Edit(nodes_[0]->id, [](NodeInfo& info) { info.weight = 0; });
  for (auto& node : nodes_) Start(*node);
  nodes_[2]->membership->SetFull(true);
  for (const TestChunk& chunk : chunks) {
    for (size_t i : {0, 1}) Plant(*nodes_[i], chunk, list);
  }
  // Each pass of node 0 finds them, and asks.
  Down(*nodes_[0]);
  Start(*nodes_[0]);
  EXPECT_TRUE(Eventually([&] { return IsIdle(*nodes_[0]); }));
  for (const TestChunk& chunk : chunks) EXPECT_TRUE(IsHere(*nodes_[0], chunk));
  ExpectCopies(chunks, 2);
}

// Each of two nodes believes that the other one alone is to have the chunks.
TEST_F(RebalanceTest, TwoThatRelyOnEachOtherDoNotBothFree) {
  options_.copies = 1;
  options_.stored_bytes = {};
  AddNodes(2);
  const auto chunks = MakeChunks(1, 30, 10'000);
  for (int round = 0; round < 20; ++round) {
    for (auto& node : nodes_) {
      for (const TestChunk& chunk : chunks) Plant(*node, chunk, {nodes_[0]->id, nodes_[1]->id});
    }
    for (size_t i : {0, 1}) {
      std::vector<NodeInfo> seen = cluster_.view()->nodes;
      for (NodeInfo& info : seen) info.weight = info.id == nodes_[i]->id ? 0 : 1;
      nodes_[i]->membership->SetOwnView(std::make_shared<const View>(std::move(seen), 1));
    }
    // Both begin now.
    for (auto& node : nodes_) SetWeight(*node, 2 + round);
    for (auto& node : nodes_) {
      EXPECT_TRUE(Eventually([&] { return IsIdle(*node); }));
    }
    for (const TestChunk& chunk : chunks) EXPECT_GE(CopiesOf(chunk), 1u) << "round " << round;
    for (auto& node : nodes_) node->membership->SetOwnView(nullptr);
  }
}

// As a collection of this node asks for.
TEST_F(RebalanceTest, NothingIsFreedWhileItIsHeld) {
  AddNodes(3);
  const auto chunks = MakeChunks(1, 20);
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  nodes_[0]->chunks->HoldRepair(true);
  const uint64_t before = CountHere(*nodes_[0]);
  SetWeight(*nodes_[0], 0);
  for (size_t i : {1, 2}) {
    EXPECT_TRUE(Eventually([&] { return IsIdle(*nodes_[i]); }));
  }
  EXPECT_EQ(CountHere(*nodes_[0]), before);
  nodes_[0]->chunks->HoldRepair(false);
  EXPECT_TRUE(Eventually([&] { return CountHere(*nodes_[0]) == 0; }));
}

// In MiB.
StoredBytes StoredOn(const View& view, const std::vector<uint64_t>& bytes) {
  StoredBytes stored;
  for (size_t i = 0; i < bytes.size(); ++i) stored[view.nodes[i].id] = bytes[i] * kMiB;
  return stored;
}

TEST(Balance, WhoHasMoreThanItsShareGivesAwayWhereSomebodyIsFarFromHis) {
  std::vector<NodeInfo> nodes(3);
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].id.bytes[0] = static_cast<std::byte>(i + 1);
    nodes[i].state = NodeState::kUp;
  }
  nodes[2].weight = 2;
  const View view(nodes, 1);
  auto gives = [&](const StoredBytes& stored) {
    std::string names;
    for (const NodeInfo& node : view.nodes) names += GivesAway(view, stored, node.id) ? 'y' : 'n';
    return names;
  };
  EXPECT_EQ(gives(StoredOn(view, {1000, 1000, 2000})), "nnn");
  EXPECT_EQ(gives(StoredOn(view, {1040, 1000, 1960})), "nnn");
  EXPECT_EQ(gives(StoredOn(view, {1200, 1000, 1800})), "ynn");
  EXPECT_EQ(gives(StoredOn(view, {1500, 1500, 0})), "yyn");
  EXPECT_EQ(gives(StoredOn(view, {50, 50, 50})), "yyn");
  EXPECT_EQ(gives(StoredOn(view, {15, 15, 14})), "nnn") << "so little is not worth a move";
  EXPECT_EQ(gives(StoredOn(view, {100, 100})), "nnn") << "the third has not told it";
  EXPECT_EQ(gives({}), "nnn");
  nodes[0].weight = 0;
  EXPECT_TRUE(GivesAway(View(nodes, 2), {}, nodes[0].id));
}

}  // namespace
}  // namespace cairnfs::cluster
