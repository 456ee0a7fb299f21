// SlicedBytes: bytes that lie in several slices, looked at by position.
#pragma once

#include <span>
#include <vector>

#include "io/buffer_pool.h"

namespace cairnfs::fs {

class SlicedBytes {
 public:
  // The slices, which are not copied, outlive it.
  explicit SlicedBytes(std::span<const io::Slice> slices);

  std::span<const io::Slice> slices() const { return slices_; }
  size_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // From `position` to the end of the slice in which it lies. REQUIRES: position < size().
  ByteSpan From(size_t position) const;
  // From the beginning of the slice in which the byte before `position` lies, up to `position`. REQUIRES: 0 < position
  // <= size().
  ByteSpan Before(size_t position) const;
  // Fills `out` from `position` on. REQUIRES: there are so many bytes.
  void Copy(size_t position, MutableByteSpan out) const;
  // REQUIRES: begin <= end <= size().
  std::vector<io::Slice> Sub(size_t begin, size_t end) const;

 private:
  size_t IndexOf(size_t position) const;  // of the slice in which it lies
  size_t BeginOf(size_t index) const { return index == 0 ? 0 : ends_[index - 1]; }

  std::span<const io::Slice> slices_;
  std::vector<size_t> ends_;  // of each slice
};

// How many bytes are equal from these positions on, up to `limit`; and up to these positions.
size_t CommonAfter(const SlicedBytes& a, size_t at_a, const SlicedBytes& b, size_t at_b, size_t limit);
size_t CommonBefore(const SlicedBytes& a, size_t at_a, const SlicedBytes& b, size_t at_b, size_t limit);

}  // namespace cairnfs::fs
