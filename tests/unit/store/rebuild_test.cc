// Rebuilding the index: what it keeps, what it steps over, and that it can always be begun again.
#include "damage_fixture.h"
#include "hooked_engine.h"

namespace cairnfs::store {
namespace {

class RebuildTest : public DamageTest {
 protected:
  RebuildResult Rebuild() {
    store_.reset();
    auto rebuilt = LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_);
    EXPECT_TRUE(rebuilt.ok()) << rebuilt.error().message;
    return rebuilt.ok() ? *rebuilt : RebuildResult();
  }
  void ExpectReadsAllBut(size_t missing) {
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (i != missing) ExpectReads(chunks_[i]);
    }
  }
};

TEST_F(RebuildTest, StepsOverABadSector) {
  Fill();
  BreakSector(chunks_[3]);
  engine_ = (store_.reset(), kv::OpenMemoryEngine());  // the index is lost too
  RebuildResult rebuilt;
  {
    auto result = LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_);
    ASSERT_OK(result);
    rebuilt = *result;
  }
  EXPECT_EQ(rebuilt.chunk_count, chunks_.size() - 1);
  EXPECT_EQ(rebuilt.problems.size(), 1u);
  Open();
  ExpectReadsAllBut(3);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kNotFound);
}

TEST_F(RebuildTest, DoesNotGiveUpWhatCannotBeReadNow) {
  Fill();
  BreakSector(chunks_[3]);
  RebuildResult rebuilt = Rebuild();
  EXPECT_EQ(rebuilt.chunk_count, chunks_.size());
  ASSERT_EQ(rebuilt.problems.size(), 1u);
  EXPECT_NE(rebuilt.problems[0].find("cannot be read"), std::string::npos) << rebuilt.problems[0];
  Open();
  ExpectReadsAllBut(3);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kIo);
  disk_.SetFaults(io::Faults());
  ExpectReads(chunks_[3]);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

TEST_F(RebuildTest, KeepsAChunkWhoseRecordHeaderIsDamaged) {
  Fill();
  ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunks_[3]), (Find(chunks_[3]).offset + 10) * 8));
  EXPECT_EQ(Rebuild().chunk_count, chunks_.size());
  Open();
  ExpectReadsAllBut(chunks_.size());
  ASSERT_EQ(Problems().size(), 1u);
  EXPECT_NE(Problems()[0].find("the bytes are intact"), std::string::npos) << Problems()[0];
}

TEST_F(RebuildTest, DropsAChunkWhoseBytesAreDamaged) {
  Fill();
  Flip(chunks_[3]);
  EXPECT_EQ(Rebuild().chunk_count, chunks_.size() - 1);
  Open();
  ExpectReadsAllBut(3);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kNotFound);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
  Put(chunks_[3], /*is_new=*/true);
}

TEST_F(RebuildTest, KnowsFromTheOldIndexWhatAnUnreadableHeaderSaid) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  io::Faults faults;
  faults.bad_sectors.push_back({name, 0, 512});
  disk_.SetFaults(faults);
  RebuildResult result = Rebuild();
  EXPECT_EQ(result.chunk_count, chunks_.size());
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_NE(result.problems[0].find(name), std::string::npos) << result.problems[0];
  Open();
  ExpectReadsAllBut(chunks_.size());
}

TEST_F(RebuildTest, KeepsTheChunksOfASegmentWithADamagedHeader) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  ASSERT_TRUE(memory_.FlipBit(name, 30 * 8));  // in the generation, which the old index has too
  RebuildResult result = Rebuild();
  EXPECT_EQ(result.chunk_count, chunks_.size());
  ASSERT_EQ(result.problems.size(), 1u);
  EXPECT_TRUE(result.problems[0].starts_with(name)) << result.problems[0];
  Open();
  ExpectReadsAllBut(chunks_.size());
  EXPECT_EQ(Problems().size(), 1u);
}

TEST_F(RebuildTest, BelievesADamagedHeaderWhenRecordsBearItOut) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  ASSERT_TRUE(memory_.FlipBit(name, 3000 * 8));
  engine_ = (store_.reset(), kv::OpenMemoryEngine());
  EXPECT_EQ(Rebuild().chunk_count, chunks_.size());
  Open();
  ExpectReadsAllBut(chunks_.size());
  // Without an index, a generation that is wrong leaves nothing to tell the records by.
  ASSERT_TRUE(memory_.FlipBit(name, 3000 * 8));
  ASSERT_TRUE(memory_.FlipBit(name, 30 * 8));
  engine_ = (store_.reset(), kv::OpenMemoryEngine());
  EXPECT_LT(Rebuild().chunk_count, chunks_.size());
  EXPECT_TRUE(memory_.Contents("damaged-" + name).has_value());
  Open();
  ExpectReads(chunks_[29]);
}

TEST_F(RebuildTest, PutsAsideASegmentOfWhichNothingTellsTheGeneration) {
  Fill();
  const std::string name = SegmentOf(chunks_[3]);
  ASSERT_OK(engine_->Write({{SegmentKey(Find(chunks_[3]).segment), std::nullopt}}, kv::WriteMode::kSynced));
  io::Faults faults;
  faults.bad_sectors.push_back({name, 0, 512});
  disk_.SetFaults(faults);
  Rebuild();
  EXPECT_TRUE(memory_.Contents("damaged-" + name).has_value());
  Open();
  ExpectReads(chunks_[29]);
  EXPECT_EQ(ReadCode(chunks_[3]), ErrorCode::kNotFound);
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// A newer program's segment, and its counters, are not given up: nothing is put aside, and the old index serves on.
TEST_F(RebuildTest, RefusesWhatANewerProgramWrote) {
  Fill();
  store_.reset();
  const std::string name = SegmentOf(chunks_[3]);
  const std::string old = memory_.Contents(name)->substr(0, kSegmentHeaderBytes);
  std::string newer = old;
  newer[8] = 2;  // the version; docs/formats/segment.md
  std::fill_n(newer.begin() + 48, 16, '\0');
  const Digest checksum = chunking::ComputeDigest(AsBytes(newer));
  std::copy_n(reinterpret_cast<const char*>(checksum.bytes.data()), 16, newer.begin() + 48);
  auto flip_between = [&] {
    for (size_t bit = 0; bit < old.size() * 8; ++bit) {
      if (((old[bit / 8] ^ newer[bit / 8]) >> (bit % 8) & 1) == 0) continue;
      ASSERT_TRUE(memory_.FlipBit(name, bit));
    }
  };
  flip_between();
  const Error refused = LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_).error();
  EXPECT_EQ(refused.code, ErrorCode::kNotSupported);
  EXPECT_TRUE(refused.message.starts_with(name)) << refused.message;
  EXPECT_FALSE(memory_.Contents("damaged-" + name).has_value());
  flip_between();
  const std::string counters = **engine_->Get(kCountersKey);
  const std::string newer_counters = '\x7f' + counters.substr(1);
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), newer_counters}}, kv::WriteMode::kSynced));
  EXPECT_EQ(LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_).error().code, ErrorCode::kNotSupported);
  EXPECT_EQ(**engine_->Get(kCountersKey), newer_counters);
  ASSERT_OK(engine_->Write({{std::string(kCountersKey), counters}}, kv::WriteMode::kSynced));
  Open();
  ExpectReadsAllBut(chunks_.size());
}

TEST_F(RebuildTest, ADiskThatIsAwayCostsNothing) {
  Fill();
  store_.reset();
  io::Faults faults;
  faults.read_error_share = 1;
  disk_.SetFaults(faults);
  EXPECT_EQ(LocalChunkStore::RebuildIndex(disk_, *engine_, *pool_).error().code, ErrorCode::kIo);
  disk_.SetFaults(io::Faults());
  Open();
  ExpectReadsAllBut(chunks_.size());
}

// The N-th write finds no room, for each N: the old index serves on, and the next attempt succeeds.
TEST_F(RebuildTest, IsBegunAgainAfterAFullDisk) {
  Fill();
  for (int full_at = 1;; ++full_at) {
    store_.reset();
    HookedEngine hooked(*engine_);
    int writes = 0;
    hooked.SetWriteHook([&]() -> Status {
      if (++writes == full_at) return MakeError(ErrorCode::kNoSpace, "no room");
      return {};
    });
    auto rebuilt = LocalChunkStore::RebuildIndex(disk_, hooked, *pool_);
    if (rebuilt.ok()) break;
    EXPECT_EQ(rebuilt.error().code, ErrorCode::kNoSpace);
    Open();
    ExpectReadsAllBut(chunks_.size());
    ASSERT_LT(full_at, 100);
    EXPECT_EQ(Rebuild().chunk_count, chunks_.size());
  }
  Open();
  ExpectReadsAllBut(chunks_.size());
  EXPECT_EQ(Problems(), std::vector<std::string>{});
}

// Without an index to fall back on, a half-made one must not be taken for whole: a collection would free the rest.
TEST_F(RebuildTest, AHalfMadeIndexIsNotOpened) {
  Fill();
  engine_ = (store_.reset(), kv::OpenMemoryEngine());
  HookedEngine hooked(*engine_);
  int writes = 0;
  hooked.SetWriteHook([&]() -> Status {
    if (++writes == 3) return MakeError(ErrorCode::kNoSpace, "no room");
    return {};
  });
  ASSERT_FALSE(LocalChunkStore::RebuildIndex(disk_, hooked, *pool_).ok());
  Error error = OpenError();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("--rebuild-index"), std::string::npos) << error.message;
  EXPECT_EQ(Rebuild().chunk_count, chunks_.size());
  Open();
  ExpectReadsAllBut(chunks_.size());
}

}  // namespace
}  // namespace cairnfs::store
