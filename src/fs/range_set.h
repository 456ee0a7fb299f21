// RangeSet: bytes of a file, as ranges that neither overlap nor touch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace cairnfs::fs {

class RangeSet {
 public:
  static constexpr size_t kRangesMax = 4096;
  explicit RangeSet(size_t ranges_max = kRangesMax) : ranges_max_(ranges_max) {}
  // Adds [begin, end). Beyond `ranges_max` ranges, the lowest is forgotten.
  void Add(uint64_t begin, uint64_t end);
  void Remove(uint64_t begin, uint64_t end);
  // Every range of another set.
  void Add(const RangeSet& more);
  void Remove(const RangeSet& other);
  // Visits the parts of [begin, end) that are not in the set, in order.
  void ForEachGap(uint64_t begin, uint64_t end,
                  const std::function<void(uint64_t gap_begin, uint64_t gap_end)>& visit) const;
  // Visits the parts of [begin, end) that are in the set, in order.
  void ForEachPart(uint64_t begin, uint64_t end,
                   const std::function<void(uint64_t part_begin, uint64_t part_end)>& visit) const;
  // Visits the ranges in order.
  void ForEach(const std::function<void(uint64_t begin, uint64_t end)>& visit) const {
    for (const auto& [begin, end] : ends_) visit(begin, end);
  }
  void Clear() { ends_.clear(); }
  bool Touches(uint64_t begin, uint64_t end) const;  // some byte of [begin, end) is in the set
  bool empty() const { return ends_.empty(); }
  size_t size() const { return ends_.size(); }  // how many ranges
  bool operator==(const RangeSet& other) const { return ends_ == other.ends_; }

 private:
  using Ends = std::map<uint64_t, uint64_t>;
  Ends::const_iterator FirstPast(uint64_t offset) const;  // the first range that ends behind it

  size_t ranges_max_;
  Ends ends_;  // by begin
};

}  // namespace cairnfs::fs
