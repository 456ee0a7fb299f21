// What hosts tell of their parts in a collection, and who is behind.
#include "cluster/epochs.h"

#include <gtest/gtest.h>

#include "base/hex.h"

namespace cairnfs::cluster {
namespace {

using Phase = CollectionPart::Phase;

NodeId Node(uint8_t number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  return id;
}

CollectionPart PartOf(Phase phase, uint64_t announcement) {
  CollectionPart part;
  part.phase = phase;
  part.announcement = announcement;
  return part;
}

bool HasBegun(const CollectionPart& part) { return part.phase != Phase::kRecording; }

// docs/formats/cluster.md
TEST(CollectionPart, Bytes) {
  CollectionPart part = PartOf(Phase::kDone, 0x0102);
  part.chunks_freed = 3;
  part.bytes_freed = 0x040000;
  part.ended_seconds = 5;
  part.error = "no";
  const std::string bytes = part.Encode();
  EXPECT_EQ(ToHex(bytes),
            "0103"
            "0201000000000000"
            "0300000000000000"
            "0000040000000000"
            "0500000000000000"
            "026e6f");
  const auto decoded = CollectionPart::Decode(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, part);
}

TEST(CollectionPart, RefusesWhatIsWrong) {
  const std::string bytes = PartOf(Phase::kBegun, 7).Encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(CollectionPart::Decode(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(CollectionPart::Decode(bytes + '\0').ok());
  for (const auto& [at, value] : {std::pair<size_t, char>{0, 2}, {1, 0}, {1, 5}}) {
    std::string wrong = bytes;
    wrong[at] = value;
    EXPECT_FALSE(CollectionPart::Decode(wrong).ok()) << at;
  }
}

TEST(CollectionPart, ALongErrorIsCut) {
  CollectionPart part = PartOf(Phase::kFailed, 1);
  part.error = std::string(100'000, 'x');
  EXPECT_LT(part.Encode().size(), 1000U);
}

TEST(EpochState, NamesWhoIsBehind) {
  EpochState state;
  EXPECT_TRUE(state.IsOver()) << "none was announced";
  state.announced = EpochState::Announcement{100, 7};
  state.sessions = {Node(1), Node(2)};
  state.parts[Node(1)] = PartOf(Phase::kBegun, 7);
  EXPECT_EQ(state.FindUnless(HasBegun), Node(2)) << "it has told nothing";
  state.parts[Node(2)] = PartOf(Phase::kDone, 6);
  EXPECT_EQ(state.FindUnless(HasBegun), Node(2)) << "it told of the collection before";
  state.parts[Node(2)] = PartOf(Phase::kRecording, 7);
  EXPECT_EQ(state.FindUnless(HasBegun), Node(2));
  state.parts[Node(2)] = PartOf(Phase::kDone, 7);
  EXPECT_EQ(state.FindUnless(HasBegun), std::nullopt);
  EXPECT_TRUE(state.IsSwept());
  EXPECT_FALSE(state.IsOver());
  state.parts[Node(1)] = PartOf(Phase::kFailed, 7);
  EXPECT_FALSE(state.IsSwept());
  EXPECT_TRUE(state.IsOver());
}

TEST(EpochState, WhoHasNoSessionIsNotWaitedFor) {
  EpochState state;
  state.announced = EpochState::Announcement{100, 7};
  state.parts[Node(1)] = PartOf(Phase::kRecording, 7);
  EXPECT_TRUE(state.IsOver());
}

TEST(EpochState, AnEpochIsOfItsAnnouncement) {
  EpochState state;
  state.epoch = EpochState::Epoch{9, 7};
  EXPECT_FALSE(state.HasEpoch());
  state.announced = EpochState::Announcement{100, 7};
  EXPECT_TRUE(state.HasEpoch());
  state.announced = EpochState::Announcement{101, 12};
  EXPECT_FALSE(state.HasEpoch()) << "that of the collection before";
}

}  // namespace
}  // namespace cairnfs::cluster
