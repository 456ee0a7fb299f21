// A byte array with holes, for the disk in memory: a large file that is mostly unwritten costs little.
#pragma once

#include <map>
#include <string>

#include "base/types.h"

namespace cairnfs::io {

class SparseBytes {
 public:
  uint64_t size() const { return size_; }
  // Bytes past the old size are zero; bytes past the new size are forgotten.
  void Resize(uint64_t size);
  // Grows the array when the write ends past it.
  void Write(uint64_t offset, ByteSpan data);
  // Returns how many bytes there were, fewer than asked at the end.
  size_t Read(uint64_t offset, MutableByteSpan data) const;

 private:
  static constexpr size_t kBlockBytes = 64 * kKiB;
  std::map<uint64_t, std::string> blocks_;  // by number; each kBlockBytes long; zeros where absent and past size_
  uint64_t size_ = 0;
};

}  // namespace cairnfs::io
