#include "fs/sliced_bytes.h"

#include <gtest/gtest.h>

#include <random>

namespace cairnfs::fs {
namespace {

std::vector<io::Slice> InSlices(std::string_view text, std::mt19937_64& random) {
  std::vector<io::Slice> slices;
  while (!text.empty()) {
    const size_t size = std::min<size_t>(text.size(), 1 + random() % 9000);
    io::Slice slice;
    slice.data = AsBytes(text).data();
    slice.size = size;
    slices.push_back(slice);
    text.remove_prefix(size);
  }
  return slices;
}

std::string TextOf(const std::vector<io::Slice>& slices) {
  std::string text;
  for (const io::Slice& slice : slices) text += AsText(slice.bytes());
  return text;
}

TEST(SlicedBytes, PartsAreThoseOfTheText) {
  std::mt19937_64 random(1);
  std::string text(50'000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  const auto slices = InSlices(text, random);
  const SlicedBytes bytes(slices);
  ASSERT_EQ(bytes.size(), text.size());
  for (int i = 0; i < 300; i++) {
    const size_t begin = random() % text.size(), end = begin + random() % (text.size() - begin + 1);
    EXPECT_EQ(TextOf(bytes.Sub(begin, end)), text.substr(begin, end - begin));
    std::string copy(end - begin, '\0');
    bytes.Copy(begin, std::as_writable_bytes(std::span(copy)));
    EXPECT_EQ(copy, text.substr(begin, end - begin));
  }
}

TEST(SlicedBytes, NoneHaveNoSize) { EXPECT_EQ(SlicedBytes({}).size(), 0u); }

// All that is equal, and nothing else: wherever the first byte lies that differs, and whatever the slices are.
TEST(SlicedBytes, CommonBytesAreFoundToTheByte) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; i++) {
    const size_t common = random() % 30'000, before_a = random() % 5000, before_b = random() % 5000;
    const std::string middle(common, 'c');
    const std::string a = std::string(before_a, 'a') + middle + std::string(random() % 5000, 'a');
    const std::string b = std::string(before_b, 'b') + middle + std::string(random() % 5000, 'b');
    const auto slices_a = InSlices(a, random), slices_b = InSlices(b, random);
    const SlicedBytes bytes_a(slices_a), bytes_b(slices_b);
    const size_t at = random() % (common + 1), limit = random() % 40'000;
    EXPECT_EQ(CommonAfter(bytes_a, before_a + at, bytes_b, before_b + at, SIZE_MAX), common - at);
    EXPECT_EQ(CommonBefore(bytes_a, before_a + at, bytes_b, before_b + at, SIZE_MAX), at);
    EXPECT_EQ(CommonAfter(bytes_a, before_a + at, bytes_b, before_b + at, limit), std::min(limit, common - at));
    EXPECT_EQ(CommonBefore(bytes_a, before_a + at, bytes_b, before_b + at, limit), std::min(limit, at));
  }
}

}  // namespace
}  // namespace cairnfs::fs
