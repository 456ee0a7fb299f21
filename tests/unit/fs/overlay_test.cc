#include "fs/overlay.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::fs {
namespace {

constexpr chunking::ChunkParams kParams{.size_bytes_min = 64, .size_bytes_max = 256, .mask_bits = 0};

// Bytes without an owner: the test keeps them.
struct Bytes {
  std::vector<std::unique_ptr<std::string>> kept;
  io::Slice Make(std::string text) {
    kept.push_back(std::make_unique<std::string>(std::move(text)));
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(kept.back()->data());
    slice.size = kept.back()->size();
    return slice;
  }
};

std::string Show(const Overlay& overlay, uint64_t offset, uint64_t length) {
  std::string text;
  overlay.Visit(
      offset, length,
      [&](uint64_t at, const io::Slice& slice) {
        EXPECT_EQ(at, offset + text.size());
        text += AsText(slice.bytes());
      },
      [&](uint64_t at, uint64_t size) {
        EXPECT_EQ(at, offset + text.size());
        text.append(size, '.');
      });
  return text;
}

TEST(Overlay, GrowsOneRunAndJoinsTheNext) {
  Bytes bytes;
  Overlay overlay(kParams);
  overlay.Write(4, bytes.Make("bbbb"));
  overlay.Write(0, bytes.Make("aaaa"));
  EXPECT_EQ(overlay.runs().size(), 1u);
  EXPECT_EQ(Show(overlay, 0, 10), "aaaabbbb..");
  EXPECT_EQ(overlay.run_bytes(), 8u);
}

TEST(Overlay, ARunWithoutItsFrontKeepsWhatIsStoredOfTheRest) {
  Bytes bytes;
  Overlay overlay(kParams);
  overlay.Write(0, bytes.Make("abcd"));
  overlay.CarveProvisional(0, 0, 1);
  overlay.Write(4, bytes.Make("efgh"));
  overlay.DropRunFront(0, 3);
  EXPECT_EQ(Show(overlay, 0, 8), "...defgh");
  EXPECT_EQ(overlay.run_bytes(), 5u);
  auto chunk = overlay.CarveProvisional(3, 3, 2);
  EXPECT_EQ(chunk->offset, 3u);
  EXPECT_EQ(chunk->stored_before, 1u);
  EXPECT_EQ(chunk->size, 5u);
}

TEST(Overlay, CarvedBytesStayReadableUntilTheyAreDropped) {
  Bytes bytes;
  Overlay overlay(kParams);
  overlay.Write(0, bytes.Make("abcdefgh"));
  auto chunk = overlay.Carve(0, 5, 1);
  EXPECT_EQ(Show(overlay, 0, 8), "abcdefgh");
  overlay.Write(2, bytes.Make("XY"));
  EXPECT_EQ(Show(overlay, 0, 8), "abXYefgh");
  overlay.DropViews(*chunk);
  EXPECT_EQ(Show(overlay, 0, 8), "..XY.fgh");
}

std::vector<std::pair<uint64_t, uint64_t>> Unstored(const Overlay& overlay) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  overlay.ForEachUnstored([&](uint64_t begin, uint64_t end) { ranges.emplace_back(begin, end); });
  return ranges;
}

TEST(Overlay, TellsWhatIsNotStored) {
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;
  Bytes bytes;
  Overlay overlay(kParams);
  overlay.Write(10, bytes.Make("abcd"));
  EXPECT_EQ(Unstored(overlay), (Ranges{{10, 14}}));
  overlay.CarveProvisional(10, 10, 1);
  EXPECT_FALSE(overlay.HasUnstored());
  overlay.Write(14, bytes.Make("ef"));
  EXPECT_EQ(Unstored(overlay), (Ranges{{14, 16}}));
  overlay.CarveProvisional(10, 10, 2);
  overlay.DropStoredRuns();
  EXPECT_TRUE(overlay.empty());
}

// Random writes, removals, carvings and droppings against an array of bytes.
TEST(Overlay, IsAnArrayOfBytes) {
  uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr uint64_t kSize = 2000;
  for (int round = 0; round < 50; round++) {
    Bytes bytes;
    Overlay overlay(kParams);
    std::string model(kSize, '.');
    std::vector<std::pair<std::shared_ptr<FlyingChunk>, std::vector<bool>>> flying;
    for (int step = 0; step < 200; step++) {
      uint64_t offset = random() % kSize, length = 1 + random() % std::min<uint64_t>(100, kSize - offset);
      switch (random() % 6) {
        case 0:
        case 1:
        case 2: {
          std::string text(length, static_cast<char>('a' + random() % 26));
          overlay.Write(offset, bytes.Make(text));
          model.replace(offset, length, text);
          break;
        }
        case 3:
          overlay.Remove(offset, length);
          model.replace(offset, length, std::string(length, '.'));
          break;
        case 4:
          if (!overlay.runs().empty()) {
            auto run = overlay.runs().begin();
            overlay.Carve(run->first, 1 + random() % run->second.length, static_cast<uint64_t>(step));
          }
          break;
        default: {
          uint64_t gap = offset;
          while (gap < kSize && model[gap] != '.') gap++;
          EXPECT_EQ(overlay.FindGap(offset), gap);
        }
      }
      ASSERT_EQ(Show(overlay, 0, kSize), model) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace cairnfs::fs
