#include <gtest/gtest.h>

#include "chunking/chunker.h"

namespace cairnfs::chunking {
namespace {

TEST(ChunkParams, RoundTrip) {
  ChunkParams params;
  params.size_bytes_min = 4096;
  params.size_bytes_max = 65536;
  params.mask_bits = 0;
  auto decoded = ChunkParams::Decode(params.Encode());
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_EQ(*decoded, params);
}

TEST(ChunkParams, EncodingOfTheDefaultsNeverChanges) {
  const std::string encoded = ChunkParams().Encode();
  std::string hex;
  for (char c : encoded) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    hex += digits;
  }
  EXPECT_EQ(hex,
            "01000000000004000000200003000000"
            "5cd6aee0");
}

TEST(ChunkParams, EveryTruncationIsRefused) {
  const std::string encoded = ChunkParams().Encode();
  for (size_t size = 0; size < encoded.size(); size++) {
    auto decoded = ChunkParams::Decode(std::string_view(encoded).substr(0, size));
    ASSERT_FALSE(decoded.ok()) << size;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  }
  EXPECT_FALSE(ChunkParams::Decode(encoded + '\0').ok());
}

TEST(ChunkParams, EveryFlippedBitIsRefused) {
  const std::string encoded = ChunkParams().Encode();
  for (size_t i = 0; i < encoded.size() * 8; i++) {
    std::string flipped = encoded;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    auto decoded = ChunkParams::Decode(flipped);
    ASSERT_FALSE(decoded.ok()) << i;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorrupt);
  }
}

TEST(ChunkParams, ValidateNamesTheMember) {
  auto message = [](auto change) {
    ChunkParams params;
    change(params);
    auto status = params.Validate();
    auto decoded = ChunkParams::Decode(params.Encode());
    EXPECT_FALSE(decoded.ok());
    return status.ok() ? std::string("ok") : status.error().message;
  };
  EXPECT_EQ(message([](auto& p) { p.version = 2; }), "chunk parameter version is 2; this program knows version 1 only");
  EXPECT_EQ(message([](auto& p) { p.size_bytes_min = 63; }),
            "chunk parameter size_bytes_min is 63; it must be at least 64");
  EXPECT_EQ(message([](auto& p) { p.size_bytes_max = 1000; }),
            "chunk parameter size_bytes_max is 1000; it must be at least size_bytes_min, 262144");
  EXPECT_EQ(message([](auto& p) { p.size_bytes_max = 64 * kMiB; }),
            "chunk parameter size_bytes_max is 67108864; it must be at most 16777216");
  EXPECT_EQ(message([](auto& p) { p.mask_bits = 17; }), "chunk parameter mask_bits is 17; it must be at most 16");
  EXPECT_TRUE(ChunkParams().Validate().ok());
}

}  // namespace
}  // namespace cairnfs::chunking
