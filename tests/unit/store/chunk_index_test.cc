#include "store/chunk_index.h"

#include "hooked_engine.h"
#include "store_fixture.h"

namespace cairnfs::store {
namespace {

class ChunkIndexTest : public ::testing::Test {
 protected:
  static SegmentPtr MakeSegment(uint64_t id) {
    SegmentHeader header{};
    header.id = SegmentId{id};
    return std::make_shared<Segment>(header);
  }
  static Location PlaceIn(const SegmentPtr& segment, uint64_t offset, const TestChunk& chunk) {
    Location location;
    location.segment = segment->header.id;
    location.offset = offset;
    location.stored_bytes = location.raw_bytes = static_cast<uint32_t>(chunk.bytes.size());
    return location;
  }
  void PutAndWrite(const TestChunk& chunk, const Location& location, const SegmentPtr& segment) {
    auto claim = index_.ClaimForPut(chunk.digest);
    ASSERT_OK(claim);
    ASSERT_EQ(*claim, ChunkIndex::Claim::kMustStore);
    segment->unindexed++;
    index_.Stored({chunk.digest, location, segment});
    std::vector<UnindexedChunk> chunks = index_.TakeUnindexed();
    ASSERT_OK(index_.WriteEntries(chunks, {.next_segment_id = 9, .open_segment = {}, .open_synced_end = 0}));
  }

  std::unique_ptr<kv::KvEngine> memory_ = kv::OpenMemoryEngine();
  HookedEngine engine_{*memory_};
  ChunkIndex index_{engine_};
};

// A segment without a key would be taken for one that nothing names, though entries name it.
TEST_F(ChunkIndexTest, AMoveThatFailsAtAReadLeavesItsTargetToBeNamedLater) {
  const SegmentPtr old = MakeSegment(1), target = MakeSegment(2);
  const TestChunk first = MakeChunk(1, 5000), second = MakeChunk(2, 5000), third = MakeChunk(3, 5000);
  PutAndWrite(first, PlaceIn(old, 4096, first), old);
  PutAndWrite(second, PlaceIn(old, 12288, second), old);

  int reads = 0;
  engine_.SetReadHook([&](std::string_view) -> Status {
    if (++reads == 2) return MakeError(ErrorCode::kIo, "the read fails");
    return {};
  });
  std::vector<ChunkIndex::Move> moves;
  moves.push_back({first.digest, PlaceIn(old, 4096, first), PlaceIn(target, 4096, first), target});
  moves.push_back({second.digest, PlaceIn(old, 12288, second), PlaceIn(target, 12288, second), target});
  EXPECT_FALSE(index_.MoveEntries(moves, kv::WriteMode::kUnsynced).ok());
  engine_.SetReadHook(nullptr);
  EXPECT_FALSE(index_.NamesSegment(target->header.id));

  PutAndWrite(third, PlaceIn(target, 20480, third), target);
  auto key = memory_->Get(SegmentKey(target->header.id));
  ASSERT_OK(key);
  EXPECT_TRUE(key->has_value());
}

// A segment of copies alone may be emptied and gone before any put is indexed.
TEST_F(ChunkIndexTest, TheIdOfASegmentThatAMoveNamesIsNotGivenAgain) {
  auto next_id = [&] { return DecodeCounters(**memory_->Get(kCountersKey))->next_segment_id; };
  const SegmentPtr old = MakeSegment(1), target = MakeSegment(20);
  const TestChunk first = MakeChunk(1, 5000), second = MakeChunk(2, 5000);
  PutAndWrite(first, PlaceIn(old, 4096, first), old);
  EXPECT_EQ(next_id(), 9u);
  std::vector<ChunkIndex::Move> moves;
  moves.push_back({first.digest, PlaceIn(old, 4096, first), PlaceIn(target, 4096, first), target});
  ASSERT_OK(index_.MoveEntries(moves, kv::WriteMode::kUnsynced));
  EXPECT_EQ(next_id(), 21u);
  PutAndWrite(second, PlaceIn(old, 12288, second), old);  // of a sync that had looked before
  EXPECT_EQ(next_id(), 21u);
}

}  // namespace
}  // namespace cairnfs::store
