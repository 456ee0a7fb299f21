#include "fs/anchor_table.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::fs {
namespace {

constexpr size_t kAnchors = 8;

Digest DigestOf(uint64_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  return digest;
}

std::vector<Anchor> AnchorsOf(uint64_t number) {
  std::mt19937_64 random(number);
  std::vector<Anchor> anchors;
  for (uint32_t i = 0; i < kAnchors; i++) anchors.push_back({1000 * i, random()});
  return anchors;
}

// How many anchors of the chunk are there, each at its place.
size_t CountFound(AnchorTable& table, uint64_t number, const Author& author = {}) {
  const auto anchors = AnchorsOf(number);
  const auto places = table.FindAll(author, anchors);
  size_t found = 0;
  for (size_t i = 0; i < anchors.size(); i++) {
    if (!places[i] || places[i]->digest != DigestOf(number)) continue;
    EXPECT_EQ(places[i]->offset, anchors[i].offset);
    EXPECT_EQ(places[i]->chunk_size, 10'000 + number);
    found++;
  }
  return found;
}

void Remember(AnchorTable& table, uint64_t number, const Author& author = {}) {
  table.Remember(author, DigestOf(number), static_cast<uint32_t>(10'000 + number), AnchorsOf(number));
}

TEST(AnchorTable, WhatIsRememberedIsFound) {
  AnchorTable table(kMiB);
  EXPECT_EQ(CountFound(table, 1), 0u);
  Remember(table, 1);
  EXPECT_EQ(CountFound(table, 1), kAnchors);
  EXPECT_EQ(CountFound(table, 2), 0u);
  EXPECT_FALSE(table.Find({}, 12345));
}

TEST(AnchorTable, TheLastChunksAreKeptAndNoMore) {
  AnchorTable table(kMiB);
  const uint64_t kept = table.chunk_count_max();
  EXPECT_GE(18 * kept * 752 * kKiB, 64 * kGiB) << "in the 18 MiB of a filesystem's table";
  for (uint64_t number = 0; number < 3 * kept; number++) Remember(table, number);
  size_t found = 0;
  for (uint64_t number = 2 * kept; number < 3 * kept; number++) found += CountFound(table, number);
  EXPECT_GE(found, kept * kAnchors * 90 / 100);
  for (uint64_t number = 0; number < 2 * kept; number++) ASSERT_EQ(CountFound(table, number), 0u);
}

// What is saved again and again does not drive out the rest, and does not grow old.
TEST(AnchorTable, TheSameChunkTakesOnePlace) {
  AnchorTable table(kMiB);
  Remember(table, 0);
  for (uint64_t i = 0; i < 10 * table.chunk_count_max(); i++) Remember(table, 1);
  EXPECT_EQ(CountFound(table, 0), kAnchors);
  for (uint64_t i = 2; i < 3 * table.chunk_count_max(); i++) {
    Remember(table, i);
    Remember(table, 1);
  }
  EXPECT_EQ(CountFound(table, 1), kAnchors);
}

TEST(AnchorTable, NobodyFindsWhatAnotherHasWrittenOrWhatIsOfAnotherOwner) {
  AnchorTable table(kMiB);
  const Author author{1000, {1000}};
  Remember(table, 1, author);
  for (const Author& other : {Author{1001, {1000}}, Author{1000, {1001}}, Author{1000, {0}}}) {
    EXPECT_EQ(CountFound(table, 1, other), 0u);
    Remember(table, 1, other);
    EXPECT_EQ(CountFound(table, 1, other), kAnchors);
  }
  EXPECT_EQ(CountFound(table, 1, author), kAnchors);
}

TEST(AnchorTable, TheNewerOfEqualAnchorsCounts) {
  AnchorTable table(kMiB);
  Remember(table, 1);
  table.Remember({}, DigestOf(2), 10'002, AnchorsOf(1));
  EXPECT_EQ(CountFound(table, 1), 0u);
  EXPECT_EQ(table.Find({}, AnchorsOf(1)[0].fingerprint)->digest, DigestOf(2));
}

TEST(AnchorTable, ATableWithoutMemoryKnowsOneChunkAtMost) {
  AnchorTable table(0);
  Remember(table, 1);
  Remember(table, 2);
  EXPECT_EQ(CountFound(table, 1), 0u);
  EXPECT_LE(CountFound(table, 2), kAnchors);
}

}  // namespace
}  // namespace cairnfs::fs
