// Memory that is made of several ranges, as that of PyTorch's expandable segments.
#include "client/address_ranges.h"

#include <gtest/gtest.h>

#include <map>

namespace cairnfs::client {
namespace {

TEST(AddressRanges, NeighboursAreCountedUpToTheFirstGap) {
  const std::map<uint64_t, uint64_t> ranges{{100, 120}, {120, 140}, {140, 150}, {160, 170}};
  const auto covered = [&](uint64_t begin, uint64_t bytes) {
    return CoveredBytes(begin, bytes, [&](uint64_t address) -> std::optional<AddressRange> {
      const auto next = ranges.upper_bound(address);
      if (next == ranges.begin()) return std::nullopt;
      const auto [first, end] = *std::prev(next);
      return address < end ? std::optional(AddressRange{first, end}) : std::nullopt;
    });
  };
  EXPECT_EQ(covered(100, 20), 20U);
  EXPECT_EQ(covered(105, 40), 40U);
  EXPECT_EQ(covered(105, 45), 45U);
  EXPECT_EQ(covered(105, 46), 45U);
  EXPECT_EQ(covered(99, 5), 0U);
  EXPECT_EQ(covered(150, 5), 0U);
  EXPECT_EQ(covered(165, 100), 5U);
  EXPECT_EQ(covered(100, 0), 0U);
}

// A range up to the end of the address space, and a question that has no end.
TEST(AddressRanges, TheLastAddress) {
  const auto all = [](uint64_t) { return std::optional(AddressRange{0, UINT64_MAX}); };
  EXPECT_EQ(CoveredBytes(UINT64_MAX - 10, 10, all), 10U);
  EXPECT_EQ(CoveredBytes(1, UINT64_MAX - 1, all), UINT64_MAX - 1);
}

}  // namespace
}  // namespace cairnfs::client
