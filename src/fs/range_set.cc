#include "fs/range_set.h"

#include <algorithm>
#include <iterator>

namespace cairnfs::fs {

RangeSet::Ends::const_iterator RangeSet::FirstPast(uint64_t offset) const {
  const auto it = ends_.upper_bound(offset);
  return it != ends_.begin() && std::prev(it)->second > offset ? std::prev(it) : it;
}

void RangeSet::Add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ends_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ends_.erase(it);
  }
  ends_.emplace(begin, end);
  if (ends_.size() > ranges_max_) ends_.erase(ends_.begin());
}

void RangeSet::Remove(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto it = FirstPast(begin);
  while (it != ends_.end() && it->first < end) {
    const auto [first, last] = *it;
    it = ends_.erase(it);
    if (first < begin) ends_.emplace(first, begin);
    if (last > end) it = ends_.emplace(end, last).first;
  }
}

void RangeSet::Add(const RangeSet& more) {
  for (const auto& [begin, end] : more.ends_) Add(begin, end);
}

void RangeSet::Remove(const RangeSet& other) {
  for (const auto& [begin, end] : other.ends_) Remove(begin, end);
}

bool RangeSet::Touches(uint64_t begin, uint64_t end) const {
  auto it = ends_.lower_bound(end);
  return begin < end && it != ends_.begin() && std::prev(it)->second > begin;
}

void RangeSet::ForEachPart(uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& visit) const {
  auto it = FirstPast(begin);
  for (; it != ends_.end() && it->first < end; ++it) visit(std::max(begin, it->first), std::min(end, it->second));
}

void RangeSet::ForEachGap(uint64_t begin, uint64_t end, const std::function<void(uint64_t, uint64_t)>& visit) const {
  auto it = FirstPast(begin);
  for (; it != ends_.end() && it->first < end; ++it) {
    if (begin < it->first) visit(begin, it->first);
    begin = std::max(begin, it->second);
  }
  if (begin < end) visit(begin, end);
}

}  // namespace cairnfs::fs
