// What a Sync waits for, and what fails it: no room, too few nodes, chunks that cannot be read.
#include "../../support/eventually.h"
#include "base/clock.h"
#include "chunk_fixture.h"

namespace cairnfs::cluster {
namespace {

TEST_F(ClusterChunkTest, WhenAllAreFullThereIsNoSpace) {
  AddNode(/*disk_bytes=*/12 * kMiB);
  AddNode(/*disk_bytes=*/12 * kMiB);
  const auto chunks = MakeChunks(1, 80, 500'000);
  Status status;
  std::vector<store::ChunkPin> pins;
  for (const TestChunk& chunk : chunks) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    auto put = nodes_[0]->chunks->Put(chunk.digest, {&slice, 1});
    if (!put.ok()) {
      status = put.error();
      break;
    }
    pins.push_back(std::move(put->pin));
  }
  if (status.ok()) status = nodes_[0]->chunks->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
}

TEST_F(ClusterChunkTest, WhereNodesAreOnlyFullTheAdviceIsRoom) {
  AddNode();
  AddNode(/*disk_bytes=*/12 * kMiB);
  const auto kept = PutAllKept(*nodes_[0], MakeChunks(1, 80, 500'000));
  const Status status = nodes_[0]->chunks->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("Add room or a node; min_replicas is 2"), std::string::npos)
      << status.error().message;
  EXPECT_EQ(status.error().message.find("Bring nodes back"), std::string::npos) << status.error().message;
}

// Files that need it hold everybody up; those that are gone do not.
TEST_F(ClusterChunkTest, WhatHasNoRoomAndNobodyNeedsIsNotWaitedFor) {
  AddNode();
  AddNode(/*disk_bytes=*/12 * kMiB);
  auto kept = PutAllKept(*nodes_[0], MakeChunks(1, 80, 500'000));
  EXPECT_EQ(nodes_[0]->chunks->Sync().error().code, ErrorCode::kNoSpace);
  kept.clear();
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->Sync().ok(); }));
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
}

// What is named at level `local` has no pin, and a commit where copies are promised counts on it.
TEST_F(ClusterChunkTest, WhatHasNoRoomAndIsNamedIsWaitedForWithoutPins) {
  AddNode();
  AddNode(/*disk_bytes=*/12 * kMiB);
  const auto chunks = MakeChunks(1, 80, 500'000);
  auto kept = PutAllKept(*nodes_[0], chunks);
  ASSERT_OK(SyncLocal(*nodes_[0]));
  std::vector<Digest> digests;
  for (const TestChunk& chunk : chunks) digests.push_back(chunk.digest);
  nodes_[0]->chunks->NoteReferenced(digests);
  kept.clear();
  EXPECT_EQ(nodes_[0]->chunks->Sync().error().code, ErrorCode::kNoSpace);
  const size_t lacking = nodes_[0]->chunks->CountUnderReplicated(digests);
  EXPECT_GT(lacking, 0u);
  Clock::SleepFor(std::chrono::milliseconds(500));  // in which what is not needed would be dropped
  EXPECT_EQ(nodes_[0]->chunks->CountUnderReplicated(digests), lacking);
  AddNode();
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->Sync().ok(); }));
}

// A node of weight 0 has room, and takes nothing.
TEST_F(ClusterChunkTest, WhereNodesAreFullOneOfWeightZeroIsNotWaitedFor) {
  AddNode();
  AddNode(/*disk_bytes=*/12 * kMiB);
  AddNode();
  cluster_.Edit(nodes_[2]->id, [](NodeInfo& info) { info.weight = 0; });
  const auto kept = PutAllKept(*nodes_[0], MakeChunks(1, 80, 500'000));
  const Status status = nodes_[0]->chunks->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
}

TEST_F(ClusterChunkTest, SyncNamesTheNodesThatLackAndCanBeRepeated) {
  options_.sync_wait_max = std::chrono::seconds(1);
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  const Status status = nodes_[0]->chunks->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(status.error().message.find("n2"), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("Bring nodes back, or lower min_replicas (cairnfs cluster set min-replicas 1); "
                                        "min_replicas is 2, copies is 2"),
            std::string::npos)
      << status.error().message;
  EXPECT_NE(nodes_[0]->chunks->DescribeShortage().find("nodes that do not answer: n2"), std::string::npos);
  EXPECT_TRUE(nodes_[0]->chunks->LacksNodes());
  std::vector<Digest> digests{MakeChunks(2, 1)[0].digest};  // nobody has put it
  for (const TestChunk& chunk : chunks) digests.push_back(chunk.digest);
  EXPECT_EQ(nodes_[0]->chunks->CountUnderReplicated(digests), chunks.size());
  ASSERT_OK(SyncLocal(*nodes_[0]));
  EXPECT_GT(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->Sync().ok(); }));
  ExpectCopies(chunks, 2);
  EXPECT_EQ(nodes_[0]->chunks->DescribeShortage(), "");
  EXPECT_FALSE(nodes_[0]->chunks->LacksNodes());
  EXPECT_EQ(nodes_[0]->chunks->CountUnderReplicated(digests), 0u);
}

TEST_F(ClusterChunkTest, LoweringMinReplicasLetsASyncThatWaitsGoOn) {
  AddNodes(2);
  Down(*nodes_[1]);
  const auto chunks = MakeChunks(1, 10);
  PutAll(*nodes_[0], chunks);
  auto synced = std::async(std::launch::async, [&] { return nodes_[0]->chunks->Sync(); });
  EXPECT_FALSE(IsReadyWithin(synced, std::chrono::seconds(1))) << "it did not wait";
  nodes_[0]->chunks->SetMinReplicas(1);
  ASSERT_OK(synced.get());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, chunks.size());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0U);

  // What was done stays done, and counts as short; what comes after needs all copies again.
  nodes_[0]->chunks->SetMinReplicas(0);
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().missing_copies, chunks.size());
  const auto later = MakeChunks(100, 10);
  PutAll(*nodes_[0], later);
  synced = std::async(std::launch::async, [&] { return nodes_[0]->chunks->Sync(); });
  EXPECT_FALSE(IsReadyWithin(synced, std::chrono::seconds(1))) << "it did not wait";
  Start(*nodes_[1]);
  ASSERT_OK(synced.get());
  ExpectCopies(later, 2);
  EXPECT_TRUE(Eventually([&] {
    return std::all_of(chunks.begin(), chunks.end(), [&](const TestChunk& chunk) { return CopiesOf(chunk) == 2; });
  }));
  EXPECT_TRUE(Eventually([&] { return nodes_[0]->chunks->ClusterStats().missing_copies == 0; }));
}

// More than are looked at in one turn: while nothing has changed, and once it has.
class ManyStuckChunks : public ClusterChunkTest {
 protected:
  void SetUp() override {
    ClusterChunkTest::SetUp();
    AddNodes(2);
    Down(*nodes_[1]);
    PutAll(*nodes_[0], chunks_);
    ASSERT_OK(SyncLocal(*nodes_[0]));
  }

  const std::vector<TestChunk> chunks_ = MakeChunks(1, 2500, 200);
};

TEST_F(ManyStuckChunks, GoOnWhenANodeComesBack) {
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, SizeOf(chunks_));
  Start(*nodes_[1]);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  ExpectCopies(chunks_, 2);
}

TEST_F(ManyStuckChunks, GoOnWhenFewerCopiesDo) {
  nodes_[0]->chunks->SetMinReplicas(1);
  ASSERT_OK(nodes_[0]->chunks->Sync());
  EXPECT_EQ(nodes_[0]->chunks->ClusterStats().unacknowledged_bytes, 0u);
}

TEST_F(ClusterChunkTest, AChunkThatCannotBeReadBackFailsOnlyWhatNeedsIt) {
  AddNodes(2);
  Down(*nodes_[1]);
  TestNode& writer = *nodes_[0];
  const TestChunk lost = MakeChunk(1, 300'000), good = MakeChunk(2, 300'000);
  const Kept lost_kept = PutKept(writer, lost), good_kept = PutKept(writer, good);
  ASSERT_OK(SyncLocal(writer));
  LetLeaveMemory(writer, {lost_kept.bytes, good_kept.bytes});
  Damage(writer, lost);
  Start(*nodes_[1]);
  const Status status = writer.chunks->Sync();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(lost.digest.ToHex()), std::string::npos) << status.error().message;
  const auto unreadable = writer.chunks->SyncReadable({}, ClusterChunkStore::SyncScope::kCopies);
  ASSERT_TRUE(unreadable.ok()) << unreadable.error().message;
  ASSERT_EQ(unreadable->size(), 1u);
  EXPECT_EQ(unreadable->begin()->first, lost.digest);
  EXPECT_EQ(CopiesOf(good), 2u);
  // Who needs it saves it once more.
  const Kept again = PutKept(writer, lost);
  ASSERT_OK(writer.chunks->Sync());
  EXPECT_TRUE(writer.chunks->SyncReadable({}, ClusterChunkStore::SyncScope::kCopies)->empty());
  EXPECT_EQ(CopiesOf(lost), 2u);
}

TEST_F(ClusterChunkTest, ASyncOfSomeWaitsForNoOthersAndHoldsThemBackForAWhile) {
  AddNodes(2);
  TestNode& writer = *nodes_[0];
  const TestChunk mine = MakeChunk(1, 300'000), stuck = MakeChunk(2, 300'000);
  const auto sync = [&](const TestChunk& chunk) {
    return writer.chunks->SyncOnly(Context().WithTimeout(std::chrono::seconds(2)),
                                   ClusterChunkStore::SyncScope::kCopies, {&chunk.digest, 1});
  };
  const Kept mine_kept = PutKept(writer, mine);
  ASSERT_OK(sync(mine));
  EXPECT_EQ(CopiesOf(mine), 2u);
  Down(*nodes_[1]);
  const Kept stuck_kept = PutKept(writer, stuck);
  ASSERT_OK(sync(mine));
  EXPECT_FALSE(sync(stuck).ok());
  EXPECT_TRUE(IsHere(writer, stuck));
  const TestChunk other = MakeChunk(3, 300'000);
  const Kept other_kept = PutKept(writer, other);
  EXPECT_TRUE(Eventually([&] { return IsHere(writer, other); }));
  Start(*nodes_[1]);
  ASSERT_OK(writer.chunks->Sync());
  EXPECT_EQ(CopiesOf(stuck), 2u);
}

TEST_F(ClusterChunkTest, AChunkThatCannotBeReadBackAndThatNobodyNeedsIsForgotten) {
  AddNodes(2);
  Down(*nodes_[1]);
  TestNode& writer = *nodes_[0];
  const TestChunk lost = MakeChunk(1, 300'000);
  const std::weak_ptr<std::byte[]> bytes = PutKept(writer, lost).bytes;  // which nobody has pinned
  ASSERT_OK(SyncLocal(writer));
  LetLeaveMemory(writer, {bytes});
  Damage(writer, lost);
  Start(*nodes_[1]);
  EXPECT_TRUE(Eventually([&] { return writer.chunks->ClusterStats().unacknowledged_bytes == 0; }));
  const auto chunks = MakeChunks(10, 3);
  PutAll(writer, chunks);
  ASSERT_OK(writer.chunks->Sync());
  ExpectCopies(chunks, 2);
}

TEST_F(ClusterChunkTest, AFailedLocalDiskIsReported) {
  AddNodes(3);
  io::Faults faults;
  faults.write_error_share = 1;
  nodes_[0]->disk.SetFaults(faults);
  const auto chunks = MakeChunks(1, 20);
  for (const TestChunk& chunk : chunks) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(chunk.bytes.data());
    slice.size = chunk.bytes.size();
    static_cast<void>(nodes_[0]->chunks->Put(chunk.digest, {&slice, 1}));
  }
  EXPECT_FALSE(nodes_[0]->chunks->Sync().ok());
  nodes_[0]->disk.SetFaults({});
}

}  // namespace
}  // namespace cairnfs::cluster
