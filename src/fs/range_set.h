// RangeSet: bytes of a file, as ranges that neither overlap nor touch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace cairnfs::fs {

class RangeSet {
 public:
  // Adds [begin, end). Beyond kRangesMax ranges, the lowest is forgotten.
  void Add(uint64_t begin, uint64_t end);
  void Remove(uint64_t begin, uint64_t end);
  // Visits the parts of [begin, end) that are not in the set, in order.
  void ForEachGap(uint64_t begin, uint64_t end,
                  const std::function<void(uint64_t gap_begin, uint64_t gap_end)>& visit) const;
  void Clear() { ends_.clear(); }
  bool Touches(uint64_t begin, uint64_t end) const;  // some byte of [begin, end) is in the set
  bool empty() const { return ends_.empty(); }

  static constexpr size_t kRangesMax = 4096;

 private:
  std::map<uint64_t, uint64_t> ends_;  // by begin
};

}  // namespace cairnfs::fs
