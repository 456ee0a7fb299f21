// A store with some chunks in a few segments, and ways to damage them.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "store/chunk_index_format.h"
#include "store/segment_format.h"
#include "store_fixture.h"

namespace cairnfs::store {

class DamageTest : public StoreTest {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }

  void Fill(uint64_t count = 30) {
    Open();
    for (uint64_t i = 0; i < count; ++i) {
      chunks_.push_back(MakeChunk(i, 40'000 + 13 * i));
      Put(chunks_.back());
      if (i % 4 == 0) ASSERT_OK(store_->Sync());
    }
    ASSERT_OK(store_->Sync());
    Open();  // seals, cuts
  }
  Location Find(const TestChunk& chunk) {
    auto value = engine_->Get(ChunkKey(chunk.digest));
    return *DecodeLocation(**value);
  }
  std::string SegmentOf(const TestChunk& chunk) { return MakeSegmentName(SegmentName::kSegment, Find(chunk).segment); }
  std::vector<std::string> Problems() {
    std::vector<std::string> problems;
    Status status = store_->Check({}, [&](const CheckProblem& problem) { problems.push_back(problem.what); });
    EXPECT_TRUE(status.ok());
    return problems;
  }
  // One bit in the chunk's bytes is wrong from now on.
  void Flip(const TestChunk& chunk) {
    ASSERT_TRUE(memory_.FlipBit(SegmentOf(chunk), (Find(chunk).data_offset() + 100) * 8));
  }
  // The block in which the chunk's bytes begin, or the next, cannot be read.
  void BreakSector(const TestChunk& chunk) {
    const uint64_t begin = AlignUp(Find(chunk).data_offset(), kPageBytes);
    io::Faults faults;
    faults.bad_sectors.push_back({SegmentOf(chunk), begin, begin + 512});
    disk_.SetFaults(faults);
  }
  ErrorCode ReadCode(const TestChunk& chunk) {
    auto text = GetText(*store_, chunk.digest);
    return text.ok() ? ErrorCode::kUnavailable : text.error().code;
  }
  Error OpenError() {
    store_.reset();
    auto store = LocalChunkStore::Open(disk_, *engine_, *pool_, SmallOptions());
    return store.ok() ? Error{ErrorCode::kFailed, "it opened"} : store.error();
  }
  std::vector<TestChunk> chunks_;
};

}  // namespace cairnfs::store
