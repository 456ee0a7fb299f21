// What is known of lost bytes.
#include <gtest/gtest.h>

#include "fs/inode.h"

namespace cairnfs::fs {
namespace {

class LostRanges : public testing::Test {
 protected:
  void Fly(uint64_t chunk_id) { content_.flying.emplace(chunk_id, std::make_shared<FlyingChunk>()); }

  Content content_{chunking::ChunkParams{.size_bytes_min = 4096, .size_bytes_max = 32768, .mask_bits = 0}};
};

TEST_F(LostRanges, TheSameRangeIsNotedOnceHoweverOftenItFails) {
  for (uint64_t id = 1; id <= 100; ++id) content_.AddLost({1000, 1000 + id, id});
  ASSERT_EQ(content_.lost.size(), 1u);
  EXPECT_TRUE(content_.HasLost(1099, 1100));
  content_.ForgetLost(0, 1u << 20, 100);
  EXPECT_TRUE(content_.HasLost(1000, 1100)) << "chunk 100 holds no newer bytes";
  content_.ForgetLost(0, 1u << 20, 101);
  EXPECT_TRUE(content_.lost.empty());
}

TEST_F(LostRanges, OnesSideBySideAreOne) {
  for (uint64_t id = 1; id <= 100; ++id) content_.AddLost({id * 10, id * 10 + 10, id});
  content_.AddLost({2000, 2010, 101});
  content_.AddLost({1010, 2000, 102});
  ASSERT_EQ(content_.lost.size(), 1u);
  EXPECT_EQ(content_.lost[0].begin, 10u);
  EXPECT_EQ(content_.lost[0].end, 2010u);
}

// Stores through a mapping are lost while chunks from before are in flight.
TEST_F(LostRanges, AnOlderOneIsStillHealedByWhatIsInFlight) {
  content_.AddLost({0, 100, 1});
  Fly(2);
  content_.AddLost({50, 200, 3});
  EXPECT_EQ(content_.lost.size(), 2u);
  content_.flying.clear();
  content_.ForgetLost(0, 200, 2);
  EXPECT_FALSE(content_.HasLost(0, 50));
  EXPECT_TRUE(content_.HasLost(50, 200));
}

TEST_F(LostRanges, ANewerOneStays) {
  content_.AddLost({0, 100, 5});
  content_.AddLost({50, 150, 4});
  content_.ForgetLost(0, 150, 5);
  EXPECT_TRUE(content_.HasLost(0, 100));
  EXPECT_FALSE(content_.HasLost(100, 150));
}

TEST_F(LostRanges, AreMissingUntilNewerBytesAreOnTheirWay) {
  auto fly = [&](uint64_t id, uint64_t offset, uint64_t size) {
    auto chunk = std::make_shared<FlyingChunk>();
    chunk->id = id;
    chunk->offset = offset;
    chunk->size = size;
    content_.flying.emplace(id, std::move(chunk));
  };
  content_.AddLost({0, 100, 2});
  fly(2, 0, 100);
  EXPECT_TRUE(content_.WhyNotWhole()) << "these are older";
  fly(3, 0, 60);
  EXPECT_TRUE(content_.WhyNotWhole()) << "these are some of them";
  fly(4, 50, 50);
  EXPECT_FALSE(content_.WhyNotWhole());
  content_.landed[4] = {};  // without a pin: lost too, and to be noted after chunk 3
  EXPECT_TRUE(content_.WhyNotWhole());
}

}  // namespace
}  // namespace cairnfs::fs
