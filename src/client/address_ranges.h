// Memory that is made of several ranges, one behind the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace cairnfs::client {

struct AddressRange {
  uint64_t begin;
  uint64_t end;
};

// How many of the `bytes` bytes from `begin` on lie in ranges without a gap between them. `range_at(address)` is the
// range that holds an address, std::optional<AddressRange>.
template <typename RangeAt>
uint64_t CoveredBytes(uint64_t begin, uint64_t bytes, RangeAt range_at) {
  uint64_t covered = 0;
  while (covered < bytes) {
    const std::optional<AddressRange> range = range_at(begin + covered);
    if (!range.has_value() || range->end <= begin + covered) break;
    covered = std::min(bytes, range->end - begin);
  }
  return covered;
}

}  // namespace cairnfs::client
