#include "fs/sliced_bytes.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace cairnfs::fs {
namespace {

// memcmp is many times as fast as looking for the first byte that differs: that is looked for in one block only.
constexpr size_t kBlockBytes = 4 * kKiB;

// How many of the first bytes are equal. REQUIRES: the same size.
size_t EqualFront(ByteSpan a, ByteSpan b) {
  assert(a.size() == b.size());
  size_t equal = 0;
  while (equal < a.size()) {
    const size_t block = std::min(kBlockBytes, a.size() - equal);
    if (std::memcmp(a.data() + equal, b.data() + equal, block) != 0) {
      const ByteSpan rest = a.subspan(equal);
      return equal +
             static_cast<size_t>(std::mismatch(rest.begin(), rest.end(), b.data() + equal).first - rest.begin());
    }
    equal += block;
  }
  return equal;
}

// How many of the last bytes are equal. REQUIRES: the same size.
size_t EqualBack(ByteSpan a, ByteSpan b) {
  assert(a.size() == b.size());
  size_t equal = 0;
  while (equal < a.size()) {
    const size_t block = std::min(kBlockBytes, a.size() - equal);
    const size_t begin = a.size() - equal - block;
    if (std::memcmp(a.data() + begin, b.data() + begin, block) != 0) {
      const ByteSpan left = a.first(a.size() - equal), right = b.first(b.size() - equal);
      return equal +
             static_cast<size_t>(std::mismatch(left.rbegin(), left.rend(), right.rbegin()).first - left.rbegin());
    }
    equal += block;
  }
  return equal;
}

}  // namespace

SlicedBytes::SlicedBytes(std::span<const io::Slice> slices) : slices_(slices) {
  size_t end = 0;
  for (const io::Slice& slice : slices) ends_.push_back(end += slice.size);
}

size_t SlicedBytes::IndexOf(size_t position) const {
  assert(position < size());
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
}

ByteSpan SlicedBytes::From(size_t position) const {
  const size_t index = IndexOf(position);
  return slices_[index].bytes().subspan(position - BeginOf(index));
}

ByteSpan SlicedBytes::Before(size_t position) const {
  assert(position > 0);
  const size_t index = IndexOf(position - 1);
  return slices_[index].bytes().first(position - BeginOf(index));
}

void SlicedBytes::Copy(size_t position, MutableByteSpan out) const {
  while (!out.empty()) {
    ByteSpan from = From(position);
    from = from.first(std::min(from.size(), out.size()));
    std::copy(from.begin(), from.end(), out.begin());
    position += from.size();
    out = out.subspan(from.size());
  }
}

std::vector<io::Slice> SlicedBytes::Sub(size_t begin, size_t end) const {
  assert(begin <= end && end <= size());
  std::vector<io::Slice> parts;
  while (begin < end) {
    const size_t index = IndexOf(begin);
    const size_t size = std::min(end, ends_[index]) - begin;
    parts.push_back(slices_[index].Sub(begin - BeginOf(index), size));
    begin += size;
  }
  return parts;
}

size_t CommonAfter(const SlicedBytes& a, size_t at_a, const SlicedBytes& b, size_t at_b, size_t limit) {
  limit = std::min({limit, a.size() - at_a, b.size() - at_b});
  size_t common = 0;
  while (common < limit) {
    const ByteSpan left = a.From(at_a + common), right = b.From(at_b + common);
    const size_t size = std::min({left.size(), right.size(), limit - common});
    const size_t equal = EqualFront(left.first(size), right.first(size));
    common += equal;
    if (equal < size) break;
  }
  return common;
}

size_t CommonBefore(const SlicedBytes& a, size_t at_a, const SlicedBytes& b, size_t at_b, size_t limit) {
  limit = std::min({limit, at_a, at_b});
  size_t common = 0;
  while (common < limit) {
    const ByteSpan left = a.Before(at_a - common), right = b.Before(at_b - common);
    const size_t size = std::min({left.size(), right.size(), limit - common});
    const size_t equal = EqualBack(left.last(size), right.last(size));
    common += equal;
    if (equal < size) break;
  }
  return common;
}

}  // namespace cairnfs::fs
