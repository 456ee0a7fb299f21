#include <gtest/gtest.h>

#include <algorithm>

#include "../../support/sanitizers.h"
#include "chunking/chunker.h"
#include "random_bytes.h"

namespace cairnfs::chunking {
namespace {

// The rule of docs/formats/chunking.md, one chunk after the other. Sizes of all chunks that were cut; what is left at
// the end is not in it.
std::vector<size_t> ReferenceCuts(ByteSpan bytes, const ChunkParams& params) {
  std::vector<size_t> sizes;
  size_t start = 0;
  for (size_t end = 1; end <= bytes.size(); end++) {
    size_t size = end - start;
    bool candidate = size >= params.size_bytes_min && IsCandidate(bytes, end - kWindowBytes, params.mask_bits);
    if (!candidate && size != params.size_bytes_max) continue;
    sizes.push_back(size);
    start = end;
  }
  return sizes;
}

template <typename NextPieceSize>
std::vector<size_t> Cuts(ByteSpan bytes, const ChunkParams& params, NextPieceSize next_piece_size) {
  CutFinder finder(params);
  std::vector<size_t> sizes;
  size_t size = 0;
  while (!bytes.empty()) {
    ByteSpan piece = bytes.first(std::min<size_t>(bytes.size(), next_piece_size()));
    bytes = bytes.subspan(piece.size());
    while (!piece.empty()) {
      CutFinder::Step step = finder.Feed(piece);
      size += step.consumed;
      EXPECT_TRUE(step.cut || step.consumed == piece.size());
      EXPECT_EQ(finder.chunk_size(), step.cut ? 0 : size);
      piece = piece.subspan(step.consumed);
      if (!step.cut) continue;
      sizes.push_back(size);
      size = 0;
    }
  }
  return sizes;
}

// The anchors of all chunks that were cut, counted from the first byte, by the rule of chunker.h.
std::vector<size_t> ReferenceAnchors(ByteSpan bytes, const ChunkParams& params) {
  std::vector<size_t> anchors;
  size_t start = 0;
  for (size_t size : ReferenceCuts(bytes, params)) {
    size_t next = start + params.size_bytes_min;
    for (size_t end = next; end <= start + size; end++) {
      if (end < next || !IsCandidate(bytes, end - kWindowBytes, 0)) continue;
      anchors.push_back(end);
      next = end + kAnchorDistanceMin;
    }
    start += size;
  }
  return anchors;
}

template <typename NextPieceSize>
std::vector<size_t> Anchors(ByteSpan bytes, const ChunkParams& params, NextPieceSize next_piece_size) {
  CutFinder finder(params);
  std::vector<size_t> anchors;
  size_t start = 0, at = 0;
  while (at < bytes.size()) {
    const auto step = finder.Feed(bytes.subspan(at, std::min<size_t>(bytes.size() - at, next_piece_size())));
    at += step.consumed;
    if (!step.cut) continue;
    for (uint32_t anchor : step.anchors) anchors.push_back(start + anchor);
    start = at;
  }
  return anchors;
}

ChunkParams SmallParams(uint32_t min, uint32_t max, uint32_t mask_bits) {
  ChunkParams params;
  params.size_bytes_min = min;
  params.size_bytes_max = max;
  params.mask_bits = mask_bits;
  return params;
}

TEST(CutFinder, CutsDoNotDependOnThePieces) {
  const ChunkParams kParams[] = {SmallParams(64, 64, 0), SmallParams(64, 80, 0), SmallParams(64, 300, 2),
                                 SmallParams(100, 1000, 4)};
  for (uint64_t seed = 1; seed <= 20 / kSlowdown; seed++) {
    std::mt19937_64 random(seed);
    auto bytes = NarrowBytes(20000, seed);
    for (const ChunkParams& params : kParams) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " min " + std::to_string(params.size_bytes_min));
      auto expected = ReferenceCuts(bytes, params);
      EXPECT_EQ(Cuts(bytes, params, [&] { return bytes.size(); }), expected);
      for (size_t piece_size : {1, 2, 7, 15, 16, 17, 63, 64, 65, 1000}) {
        EXPECT_EQ(Cuts(bytes, params, [&] { return piece_size; }), expected) << "pieces of " << piece_size;
      }
      for (size_t piece_size_max : {3, 30, 200, 3000}) {
        EXPECT_EQ(Cuts(bytes, params, [&] { return 1 + random() % piece_size_max; }), expected);
      }
    }
  }
}

TEST(CutFinder, DefaultParametersInMegabytePieces) {
  auto bytes = RandomBytes(12 * kMiB + 12345, 5);
  EXPECT_EQ(Cuts(bytes, ChunkParams(), [] { return kMiB; }), ReferenceCuts(bytes, ChunkParams()));
}

TEST(CutFinder, AnchorsDoNotDependOnThePieces) {
  for (uint64_t seed = 1; seed <= 2; seed++) {
    std::mt19937_64 random(seed);
    // Candidates lie closer together than anchors may.
    auto bytes = NarrowBytes(400'000, seed);
    const ChunkParams params = SmallParams(64, 100'000, 14);
    const auto expected = ReferenceAnchors(bytes, params);
    ASSERT_GE(expected.size(), 8u);
    EXPECT_EQ(Anchors(bytes, params, [&] { return bytes.size(); }), expected);
    for (size_t piece_size_max : {3, 200, 50'000}) {
      EXPECT_EQ(Anchors(bytes, params, [&] { return 1 + random() % piece_size_max; }), expected);
    }
  }
}

TEST(CutFinder, AnchorsOfTheDefaultParameters) {
  auto bytes = RandomBytes(6 * kMiB, 6);
  const auto expected = ReferenceAnchors(bytes, ChunkParams());
  EXPECT_EQ(Anchors(bytes, ChunkParams(), [] { return kMiB; }), expected);
  // 80 KiB apart in the two thirds of the bytes that are looked at.
  EXPECT_GE(expected.size(), 20u);
  EXPECT_LE(expected.size(), 80u);
}

// Without a cut, those of the chunk that has begun.
TEST(CutFinder, TheCurrentChunkHasAnchorsToo) {
  auto bytes = RandomBytes(kMiB, 9);
  ChunkParams params;
  params.mask_bits = 16;
  CutFinder finder(params);
  ASSERT_FALSE(finder.Feed(bytes).cut);
  const std::vector<uint32_t> anchors = finder.anchors();
  ASSERT_FALSE(anchors.empty());
  for (uint32_t anchor : anchors) EXPECT_TRUE(IsCandidate(bytes, anchor - kWindowBytes, 0));
  finder.Reset();
  EXPECT_TRUE(finder.anchors().empty());
}

TEST(CutFinder, EveryBoundaryOfACandidate) {
  const auto window = PassingWindow(3);
  const ChunkParams params = SmallParams(64, 128, 3);
  for (size_t end = kWindowBytes; end <= 160; end++) {
    std::vector<std::byte> bytes(200, std::byte{0x11});
    std::copy(window.begin(), window.end(), bytes.begin() + static_cast<ptrdiff_t>(end - kWindowBytes));
    auto expected = ReferenceCuts(bytes, params);
    for (size_t split = 0; split <= bytes.size(); split++) {
      bool first = true;
      auto sizes = Cuts(bytes, params, [&] { return std::exchange(first, false) && split > 0 ? split : 200; });
      ASSERT_EQ(sizes, expected) << "window ends at " << end << ", pieces split at " << split;
    }
  }
}

TEST(CutFinder, EqualBytesAreCutAtTheMaximum) {
  std::vector<std::byte> zeros(5 * kMiB);
  EXPECT_EQ(Cuts(zeros, ChunkParams(), [] { return 100000; }), (std::vector<size_t>{2 * kMiB, 2 * kMiB}));
}

TEST(CutFinder, AnEmptyPieceChangesNothing) {
  CutFinder finder{ChunkParams()};
  auto step = finder.Feed({});
  EXPECT_EQ(step.consumed, 0u);
  EXPECT_FALSE(step.cut);
  EXPECT_EQ(finder.chunk_size(), 0u);
}

TEST(CutFinder, ResetStartsANewChunk) {
  auto bytes = NarrowBytes(5000, 3);
  const ChunkParams params = SmallParams(64, 300, 2);
  CutFinder finder(params);
  finder.Feed(ByteSpan(bytes).first(50));
  EXPECT_EQ(finder.chunk_size(), 50u);
  finder.Reset();
  auto step = finder.Feed(bytes);
  ASSERT_TRUE(step.cut);
  EXPECT_EQ(step.consumed, ReferenceCuts(bytes, params).front());
}

// Averages between 512 KiB and 1 MiB for what checkpoints hold; few chunks at the maximum.
TEST(CutFinder, AverageChunkSize) {
  constexpr size_t kCount = 16 * kMiB / kSlowdown;
  std::mt19937_64 random(7);
  std::normal_distribution<float> weights(0, 0.02F);
  std::vector<float> float32(kCount);
  std::vector<uint16_t> bfloat16(kCount);
  for (size_t i = 0; i < kCount; i++) {
    float32[i] = weights(random);
    uint32_t raw;
    std::memcpy(&raw, &float32[i], sizeof raw);
    bfloat16[i] = static_cast<uint16_t>((raw + 0x8000) >> 16);
  }
  auto uniform = RandomBytes(64 * kMiB / kSlowdown, 8);
  for (ByteSpan bytes : {std::as_bytes(std::span(float32)), std::as_bytes(std::span(bfloat16)), ByteSpan(uniform)}) {
    auto sizes = Cuts(bytes, ChunkParams(), [] { return kMiB; });
    ASSERT_FALSE(sizes.empty());
    size_t average = bytes.size() / sizes.size();
    EXPECT_GE(average, 512 * kKiB);
    EXPECT_LE(average, kMiB);
  }
}

// Data that moves inside a file is cut into the same chunks again, but for the first.
TEST(CutFinder, CutsFollowTheContent) {
  auto bytes = RandomBytes(16 * kMiB, 11);
  auto moved = RandomBytes(777, 12);
  moved.insert(moved.end(), bytes.begin(), bytes.end());
  auto ends = [](const std::vector<size_t>& sizes, size_t shift) {
    std::vector<size_t> positions;
    size_t at = 0;
    for (size_t size : sizes) {
      at += size;
      if (at >= shift) positions.push_back(at - shift);
    }
    return positions;
  };
  auto before = ends(Cuts(bytes, ChunkParams(), [] { return kMiB; }), 0);
  auto after = ends(Cuts(moved, ChunkParams(), [] { return kMiB; }), 777);
  std::vector<size_t> common;
  std::set_intersection(before.begin(), before.end(), after.begin(), after.end(), std::back_inserter(common));
  EXPECT_GE(common.size() * 2, before.size());
}

}  // namespace
}  // namespace cairnfs::chunking
