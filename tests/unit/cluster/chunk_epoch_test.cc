// What a node saves while others collect: they free what nobody has asked them for since they began to record.
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

class EpochTest : public ClusterChunkTest {
 protected:
  void Record() {
    for (auto& node : nodes_) {
      ASSERT_OK(node->local->Sync());
      node->local->BeginCollection();
    }
  }
  // Chunks that the first of four nodes has saved; it has let go of them, and all begin to record.
  std::vector<TestChunk> SaveThenRecord() {
    AddNodes(4);
    auto chunks = MakeChunks(1, 30);
    PutAll(*nodes_[0], chunks);
    EXPECT_TRUE(nodes_[0]->chunks->Sync().ok());
    Record();
    return chunks;
  }
  // No record names anything.
  void SweepAll() {
    for (auto& node : nodes_) {
      store::SweepProgress progress;
      store::SweepOptions options;
      options.companion_key = HolderKey;
      ASSERT_OK(node->local->Sweep(
          {}, [](const Digest&) { return false; }, options, progress));
      ASSERT_OK(node->chunks->ForgetHolders({}, [](const Digest&) { return false; }));
    }
  }
};

TEST_F(EpochTest, WhatIsPinnedIsAskedForAndKept) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 30);
  auto kept = PutAllKept(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  Record();
  nodes_[0]->chunks->BeginEpoch();
  ASSERT_OK(nodes_[0]->chunks->AwaitSafe({}));
  ASSERT_OK(nodes_[0]->chunks->Sync());
  SweepAll();
  ExpectCopies(chunks, 2);
  ExpectReads(*nodes_[3], chunks);
}

// The same without the epoch: the other nodes know of nobody who needs them, and forget them and who has them.
TEST_F(EpochTest, WhatNobodyAsksForGoes) {
  const auto chunks = SaveThenRecord();
  SweepAll();
  ExpectCopies(chunks, 0);
  for (const TestChunk& chunk : chunks) {
    for (auto& node : nodes_) EXPECT_TRUE(ListOf(*node, chunk).empty());
  }
}

// It was confirmed in an earlier epoch, and is saved once more in this one.
TEST_F(EpochTest, WhatWasConfirmedBeforeIsAskedForOnceMore) {
  const auto chunks = SaveThenRecord();
  nodes_[0]->chunks->BeginEpoch();
  PutAll(*nodes_[0], chunks);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  SweepAll();
  ExpectCopies(chunks, 2);
}

// As copy_file_range takes them from a file: nobody has put them here, and they lie elsewhere.
TEST_F(EpochTest, WhatIsPinnedToBeCopiedIsAskedFor) {
  const auto chunks = SaveThenRecord();
  nodes_[3]->chunks->BeginEpoch();
  std::vector<store::ChunkPin> pins;
  for (const TestChunk& chunk : chunks) {
    auto pin = nodes_[3]->chunks->Pin(chunk.digest, chunk.bytes.size());
    ASSERT_OK(pin);
    pins.push_back(*std::move(pin));
  }
  ASSERT_OK(nodes_[3]->chunks->Sync());
  SweepAll();
  ExpectCopies(chunks, 2);
}

// A copy of it is on its way when the epoch begins.
TEST_F(EpochTest, WhatIsBeingSavedIsKept) {
  AddNodes(4);
  const auto chunks = MakeChunks(1, 60);
  std::vector<Kept> kept;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i % 20 == 10) {
      if (i == 10) Record();
      nodes_[0]->chunks->BeginEpoch();
    }
    kept.push_back(PutKept(*nodes_[0], chunks[i]));
  }
  ASSERT_OK(nodes_[0]->chunks->AwaitSafe({}));
  ASSERT_OK(nodes_[0]->chunks->Sync());
  SweepAll();
  for (const TestChunk& chunk : chunks) EXPECT_GE(CopiesOf(chunk), 2u);
}

// A node that has freed a dead chunk does not get it back from one that has not yet.
TEST_F(EpochTest, RepairMakesNoCopiesWhileItIsHeld) {
  AddNodes(3);
  for (auto& node : nodes_) node->chunks->HoldRepair(true);
  const auto chunks = MakeChunks(1, 5);
  for (const TestChunk& chunk : chunks) Plant(*nodes_[0], chunk, {nodes_[0]->id, nodes_[1]->id});
  Down(*nodes_[2]);
  cluster_.SetState(nodes_[2]->id, NodeState::kOut);  // kicks the others' repair
  Clock::SleepFor(std::chrono::milliseconds(50));
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().repair_bytes_total, 0u);
  ExpectCopies(chunks, 1);
  for (size_t i = 0; i < 2; ++i) nodes_[i]->chunks->HoldRepair(false);
  EXPECT_TRUE(Eventually([&] { return CopiesOf(chunks.back()) == 2 && CopiesOf(chunks.front()) == 2; }));
}

}  // namespace
}  // namespace cairnfs::cluster
