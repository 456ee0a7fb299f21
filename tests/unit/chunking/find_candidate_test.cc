#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "chunking/chunker.h"
#include "random_bytes.h"

namespace cairnfs::chunking {
namespace {

std::string NameOf(Implementation implementation) {
  switch (implementation) {
    case Implementation::kScalar: return "scalar";
    case Implementation::kAvx2: return "AVX2";
    case Implementation::kAvx512: return "AVX512";
  }
  return "unknown";
}

std::optional<size_t> Reference(ByteSpan bytes, uint32_t mask_bits) {
  for (size_t p = 0; p + kWindowBytes <= bytes.size(); p++) {
    if (IsCandidate(bytes, p, mask_bits)) return p;
  }
  return std::nullopt;
}

class FindCandidateTest : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!IsSupported(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
  }

  // Copies the bytes so that they end where the allocation ends: a read past them is seen by the address sanitizer.
  std::optional<size_t> Find(ByteSpan bytes, uint32_t mask_bits) {
    std::unique_ptr<std::byte[]> exact(new std::byte[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), exact.get());
    return FindCandidate({exact.get(), bytes.size()}, mask_bits, GetParam());
  }

  // Compares every candidate of the run with the reference.
  void ExpectSameCandidates(ByteSpan bytes, uint32_t mask_bits) {
    size_t from = 0;
    while (true) {
      auto expected = Reference(bytes.subspan(from), mask_bits);
      ASSERT_EQ(FindCandidate(bytes.subspan(from), mask_bits, GetParam()), expected) << "from " << from;
      if (!expected) return;
      from += *expected + 1;
    }
  }
};

TEST_P(FindCandidateTest, RandomBytes) {
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    for (uint32_t mask_bits : {0, 1, 3}) ExpectSameCandidates(RandomBytes(kMiB + seed * 17, seed), mask_bits);
  }
}

TEST_P(FindCandidateTest, BytesThatPassTheByteTestsOften) {
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    for (uint32_t mask_bits : {0, 1, 3, 8, 16}) ExpectSameCandidates(NarrowBytes(20000, seed), mask_bits);
  }
}

TEST_P(FindCandidateTest, EqualBytesHaveNone) {
  for (int value = 0; value < 256; value++) {
    std::vector<std::byte> bytes(1000, static_cast<std::byte>(value));
    EXPECT_EQ(Find(bytes, 0), std::nullopt) << value;
  }
}

TEST_P(FindCandidateTest, OneCandidateAtEveryPositionOfEverySize) {
  const auto window = PassingWindow(3);
  for (size_t size = kWindowBytes; size < 420; size++) {
    for (size_t position = 0; position + kWindowBytes <= size; position++) {
      std::vector<std::byte> bytes(size, std::byte{0x11});
      std::copy(window.begin(), window.end(), bytes.begin() + static_cast<ptrdiff_t>(position));
      // The filler may complete another window with bytes of the planted one.
      auto expected = Reference(bytes, 3);
      ASSERT_TRUE(expected && *expected <= position);
      ASSERT_EQ(Find(bytes, 3), expected) << "size " << size << " position " << position;
    }
  }
}

TEST_P(FindCandidateTest, TinyInputs) {
  const auto window = PassingWindow(0);
  for (size_t size = 0; size < kWindowBytes; size++) EXPECT_EQ(Find(ByteSpan(window).first(size), 0), std::nullopt);
  EXPECT_EQ(Find(window, 0), 0u);
  EXPECT_EQ(Find({}, 0), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, FindCandidateTest,
                         testing::Values(Implementation::kScalar, Implementation::kAvx2, Implementation::kAvx512),
                         [](const auto& info) { return NameOf(info.param); });

// While the implementations are timed by turns, and after one was chosen; by several threads, as workers cut.
TEST(Implementations, TheChosenOneAnswersAsTheOthers) {
  const auto bytes = RandomBytes(kMiB, 9);
  std::vector<std::optional<size_t>> expected;
  for (uint32_t mask_bits = 0; mask_bits < 8; mask_bits++) {
    expected.push_back(FindCandidate(bytes, mask_bits, Implementation::kScalar));
  }
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&] {
      for (int round = 0; round < 40; round++) {
        for (uint32_t mask_bits = 0; mask_bits < 8; mask_bits++) {
          EXPECT_EQ(FindCandidate(bytes, mask_bits), expected[mask_bits]);
        }
      }
    });
  }
}

}  // namespace
}  // namespace cairnfs::chunking
