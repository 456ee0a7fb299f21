#include "fs/recipe.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::fs {
namespace {

Digest MakeDigest(uint8_t seed) {
  Digest digest;
  digest.bytes.fill(std::byte{seed});
  return digest;
}

std::vector<Extent> SomeExtents() {
  return {{0, 700000, MakeDigest(1), 0, 700000},
          {700000, 4096, MakeDigest(2), 512, 8192},
          {kLeafBytes - 100, 100, MakeDigest(3), 0, 2000000}};
}

TEST(Recipe, InlineExtentsSurviveTheirEncoding) {
  Recipe recipe;
  recipe.extents = SomeExtents();
  auto decoded = Recipe::Decode(recipe.Encode());
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_FALSE(decoded->is_tree);
  EXPECT_EQ(decoded->extents, recipe.extents);
}

TEST(Recipe, TreesSurviveTheirEncoding) {
  Recipe recipe;
  recipe.is_tree = true;
  recipe.inner = {{0, MakeDigest(7), 1000, 3}, {9, MakeDigest(8), uint64_t{1} << 40, 99}};
  auto decoded = Recipe::Decode(recipe.Encode());
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_TRUE(decoded->is_tree);
  EXPECT_EQ(decoded->inner, recipe.inner);
}

TEST(Recipe, NothingIsTheEmptyRecipe) {
  EXPECT_EQ(Recipe().Encode(), "");
  auto decoded = Recipe::Decode("");
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(decoded->extents.empty());
}

// The bytes are pinned: a change of the format must be a change of its version.
TEST(Recipe, GoldenBytes) {
  Recipe recipe;
  recipe.extents = {{16, 300, MakeDigest(0xab), 2, 400}};
  EXPECT_EQ(recipe.Encode(), std::string("\x01\x01\x10\xac\x02\x02\x90\x03", 8) + std::string(32, '\xab'));
}

template <typename Decode>
void TryEveryDamage(const std::string& text, Decode decode) {
  for (size_t size = 1; size < text.size(); size++) EXPECT_FALSE(decode(text.substr(0, size))) << size;
  EXPECT_FALSE(decode(text + "x"));
  for (size_t at = 0; at < text.size(); at++) {
    for (int bit = 0; bit < 8; bit++) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      decode(flipped);  // whatever it says, it must not crash
    }
  }
}

TEST(Recipe, DecodersStandEveryTruncationAndFlip) {
  Recipe inline_recipe;
  inline_recipe.extents = SomeExtents();
  TryEveryDamage(inline_recipe.Encode(), [](const std::string& text) { return Recipe::Decode(text).ok(); });
  Recipe tree;
  tree.is_tree = true;
  tree.inner = {{0, MakeDigest(7), 1000, 3}, {9, MakeDigest(8), 77, 99}};
  TryEveryDamage(tree.Encode(), [](const std::string& text) { return Recipe::Decode(text).ok(); });
  TryEveryDamage(EncodeExtents(SomeExtents(), 0),
                 [](const std::string& text) { return DecodeExtents(text, 0, kLeafBytes).ok(); });
  TryEveryDamage(EncodePageRefs(tree.inner), [](const std::string& text) { return DecodePageRefs(text).ok(); });
}

TEST(Recipe, RefusesExtentsThatLeaveTheirRangeOrChunk) {
  EXPECT_FALSE(DecodeExtents(EncodeExtents({{0, 10, MakeDigest(1), 0, 10}}, 0), 0, 9).ok());
  EXPECT_FALSE(DecodeExtents(EncodeExtents({{0, 10, MakeDigest(1), 5, 10}}, 0), 0, 100).ok());
  EXPECT_FALSE(Recipe::Decode(std::string("\x09", 1)).ok());
}

}  // namespace
}  // namespace cairnfs::fs
