#include "commit_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

namespace cairnfs::tools {
namespace {

using Revisions = std::vector<uint64_t>;

class CommitWatchTest : public testing::Test {
 protected:
  // What the next listing has; the last one stays.
  void Next(const Revisions& revisions) { listings_.push_back(revisions); }
  CommitWatch::List Listing() {
    return [this]() -> Result<CheckpointList> {
      CheckpointList list;
      for (const uint64_t revision : listings_.front()) {
        Checkpoint checkpoint;
        checkpoint.name = std::to_string(revision);
        checkpoint.inode = std::ranges::count(list.checkpoints, revision, &Checkpoint::revision);  // of those with it
        checkpoint.path = "/run/" + checkpoint.name;
        checkpoint.commit = nlohmann::ordered_json{{"revision", revision}};
        list.checkpoints.push_back(std::move(checkpoint));
      }
      if (listings_.size() > 1) listings_.pop_front();
      return list;
    };
  }
  static Revisions Told(CommitWatch& watch) {
    const auto fresh = watch.Look();
    Revisions told;
    if (!fresh.ok()) return {0};
    for (const Checkpoint& checkpoint : *fresh) told.push_back(checkpoint.revision());
    return told;
  }

  std::deque<Revisions> listings_;
};

TEST_F(CommitWatchTest, EachIsToldOnceInOrder) {
  CommitWatch watch(Listing(), std::nullopt);
  Next({3, 1});
  EXPECT_EQ(Told(watch), Revisions()) << "these were there before";
  Next({7, 3, 5});
  EXPECT_EQ(Told(watch), Revisions());
  EXPECT_EQ(Told(watch), Revisions({5, 7}));
  EXPECT_EQ(Told(watch), Revisions());
  CommitWatch later(Listing(), 3);
  EXPECT_EQ(Told(later), Revisions({5, 7}));
}

TEST_F(CommitWatchTest, WhatOneListingMissesIsToldBeforeWhatFollowed) {
  CommitWatch watch(Listing(), 0);
  Next({2});
  Next({1, 2, 4});  // 3 is missing
  Next({1, 2, 3, 4});
  EXPECT_EQ(Told(watch), Revisions({1, 2}));
  EXPECT_EQ(Told(watch), Revisions({3, 4}));
}

TEST_F(CommitWatchTest, BothOfAnExchangeAreTold) {
  CommitWatch watch(Listing(), 0);
  Next({2, 2});
  EXPECT_EQ(Told(watch), Revisions({2, 2}));
  EXPECT_EQ(Told(watch), Revisions());
  Next({2, 2, 3});  // this one misses the other
  Next({2, 2, 3});
  Next({2, 2, 3, 3});
  EXPECT_EQ(Told(watch), Revisions());
  EXPECT_EQ(Told(watch), Revisions({3}));
  EXPECT_EQ(Told(watch), Revisions({3}));
}

TEST_F(CommitWatchTest, WhatCannotBeHeldIsToldLater) {
  bool is_away = true;
  Revisions held;
  const auto hold = [&](const Checkpoint& checkpoint) -> Status {
    if (is_away && checkpoint.revision() == 2) return MakeError(ErrorCode::kUnavailable, "away");
    held.push_back(checkpoint.revision());
    return {};
  };
  CommitWatch watch(Listing(), 0, hold);
  Next({1, 2});
  EXPECT_EQ(Told(watch), Revisions({0}));
  is_away = false;
  EXPECT_EQ(Told(watch), Revisions({1, 2}));
  EXPECT_EQ(held, Revisions({1, 1, 2}));
  CommitWatch from_now(Listing(), std::nullopt, hold);
  EXPECT_EQ(Told(from_now), Revisions());
  EXPECT_EQ(held.size(), 3u) << "what is not told is not held";
}

}  // namespace
}  // namespace cairnfs::tools
