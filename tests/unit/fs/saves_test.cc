// What was written below a directory, found by the directories above, and forgotten in a fair order.
#include "fs/saves.h"

#include <gtest/gtest.h>

#include <map>

namespace cairnfs::fs {
namespace {

using std::chrono::milliseconds;

class SavesTest : public testing::Test {
 protected:
  SaveTallyPtr Write(uint64_t directory, uint64_t bytes, uint32_t uid = 0) {
    SaveTallyPtr tally = saves.Of(InodeId{directory}, uid);
    tally->NoteWrite(bytes, milliseconds(1));
    return tally;
  }
  uint64_t TakeBelow(uint64_t directory) { return saves.TakeBelow(InodeId{directory}).part.written_bytes; }
  bool IsWrittenBelow(uint64_t directory) { return saves.IsWrittenBelow(InodeId{directory}); }

  size_t parents_asked = 0;
  std::map<uint64_t, uint64_t> parents;
  Saves saves{[this](InodeId directory) {
    ++parents_asked;
    const auto found = parents.find(directory.value);
    return InodeId{found == parents.end() ? 0 : found->second};
  }};
};

TEST_F(SavesTest, WhatWasWrittenBelowIsTakenOnce) {
  parents = {{10, kRootInode.value}, {20, 10}, {30, 20}, {31, 20}, {40, 10}};
  Write(30, 1);
  Write(31, 2);
  Write(31, 4);
  Write(40, 8);
  EXPECT_FALSE(IsWrittenBelow(99));
  EXPECT_FALSE(IsWrittenBelow(kRootInode.value));
  EXPECT_TRUE(IsWrittenBelow(20));
  EXPECT_EQ(TakeBelow(20), 7U);
  EXPECT_FALSE(IsWrittenBelow(20));
  EXPECT_FALSE(IsWrittenBelow(30));
  EXPECT_TRUE(IsWrittenBelow(10)) << "what was written beside it is there still";
  EXPECT_EQ(TakeBelow(10), 8U);
  EXPECT_TRUE(saves.TakeBelow(InodeId{10}).tallies.empty());
  EXPECT_TRUE(saves.Written().empty());
  Write(30, 16);
  EXPECT_EQ(TakeBelow(20), 16U) << "written anew";
}

TEST_F(SavesTest, ADirectoryCountsWhereItWasMoved) {
  parents = {{10, kRootInode.value}, {11, kRootInode.value}, {20, 10}, {30, 20}};
  Write(30, 1);
  parents[20] = 11;
  saves.NoteMoved(InodeId{20});
  EXPECT_FALSE(IsWrittenBelow(10));
  EXPECT_EQ(TakeBelow(11), 1U);
  saves.NoteMoved(InodeId{20});  // nothing is known of it any more
  // Moved by another host, which this one finds out when it looks the name up.
  const SaveTallyPtr tally = Write(30, 1);
  parents[30] = 10;
  tally->NoteWrite(1, milliseconds(1));
  EXPECT_EQ(TakeBelow(11), 2U) << "it counts where it was first written";
  tally->NoteWrite(4, milliseconds(1));
  EXPECT_EQ(TakeBelow(10), 4U);
}

// As what a host has last seen of names that others move may do.
TEST_F(SavesTest, ParentsInARingDoNoHarm) {
  parents = {{10, 20}, {20, 30}, {30, 10}};
  Write(10, 1);
  parents = {{10, 30}, {20, 10}, {30, 20}};
  Write(20, 2);
  parents = {{30, 30}};
  Write(30, 4);
  uint64_t taken = 0;
  for (const uint64_t directory : {10, 20, 30}) taken += TakeBelow(directory);
  EXPECT_EQ(taken, 7U);
  EXPECT_TRUE(saves.Written().empty());
}

TEST_F(SavesTest, OfDeepDirectoriesTheLevelsThatAreKeptAreBounded) {
  const uint64_t depth = 3 * Saves::kLevelsMax;
  for (uint64_t level = 10; level < 10 + depth; ++level) parents[level] = level + 1;
  Write(10, 1);
  EXPECT_LE(parents_asked, Saves::kLevelsMax);
  EXPECT_FALSE(IsWrittenBelow(10 + Saves::kLevelsMax));
  EXPECT_EQ(TakeBelow(10 + Saves::kLevelsMax - 1), 1U);
}

TEST_F(SavesTest, WhoWritesMostIsForgottenFirst) {
  parents = {{100, kRootInode.value}, {101, 100}, {102, 100}};
  const SaveTallyPtr first = Write(101, 1, 1);
  for (uint64_t i = 0; i < 2 * Saves::kPlacesMax; ++i) Write(1000 + i, 1, 1234);
  Write(102, 2, 1);
  EXPECT_LE(saves.Written().size(), Saves::kPlacesMax);
  EXPECT_FALSE(IsWrittenBelow(1000)) << "the other's oldest";
  EXPECT_TRUE(IsWrittenBelow(1000 + 2 * Saves::kPlacesMax - 1));
  EXPECT_EQ(TakeBelow(100), 3U) << "the save of who has few is whole";
}

TEST_F(SavesTest, WhatWasForgottenCountsAgainOnceItIsWritten) {
  const SaveTallyPtr oldest = Write(9, 1, 1234);
  for (uint64_t i = 0; i < Saves::kPlacesMax; ++i) Write(1000 + i, 1, 1234);
  EXPECT_FALSE(IsWrittenBelow(9));
  oldest->NoteWrite(4, milliseconds(1));
  EXPECT_EQ(TakeBelow(9), 4U);
}

// A deep path takes as many places as it has directories.
TEST_F(SavesTest, DirectoriesAboveCountForWhoWrites) {
  parents = {{100, kRootInode.value}};
  for (uint64_t i = 0; i < 1000; ++i) {
    parents[200 + i] = 100;
    Write(200 + i, 1, 1);
  }
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t deepest = 1'000'000 * (i + 1);
    for (uint64_t level = 0; level < Saves::kLevelsMax; ++level) parents[deepest + level] = deepest + level + 1;
    Write(deepest, 1, 1234);
  }
  EXPECT_EQ(TakeBelow(100), 1000U);
}

TEST_F(SavesTest, WhatCouldNotBeKeptIsGivenBack) {
  parents = {{20, 10}};
  Write(20, 3);
  Saves::Taken taken = saves.TakeBelow(InodeId{10});
  saves.GiveBack(InodeId{10}, 0, taken.part);
  const Saves::Taken again = saves.TakeBelow(InodeId{10});
  EXPECT_EQ(again.part.written_bytes, 3U);
  EXPECT_EQ(again.part.first_write, taken.part.first_write);
}

TEST_F(SavesTest, NewBytesMayBecomeKnownLater) {
  const SaveTallyPtr tally = Write(20, 3);
  const Saves::Taken taken = saves.TakeBelow(InodeId{20});
  *tally->new_bytes += 2;
  EXPECT_EQ(Saves::TakeLate(taken.tallies), 2U);
  EXPECT_EQ(Saves::TakeLate(taken.tallies), 0U);
  tally->NoteWrite(1, milliseconds(1));
  *tally->new_bytes += 2;
  EXPECT_EQ(Saves::TakeLate(taken.tallies), 0U) << "of the next save";
}

}  // namespace
}  // namespace cairnfs::fs
