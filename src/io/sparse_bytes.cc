#include "io/sparse_bytes.h"

#include <algorithm>

namespace cairnfs::io {

void SparseBytes::Resize(uint64_t size) {
  if (size < size_) {
    blocks_.erase(blocks_.lower_bound((size + kBlockBytes - 1) / kBlockBytes), blocks_.end());
    auto last = blocks_.find(size / kBlockBytes);
    if (last != blocks_.end()) std::fill(last->second.begin() + size % kBlockBytes, last->second.end(), '\0');
  }
  size_ = size;
}

void SparseBytes::Write(uint64_t offset, ByteSpan data) {
  if (data.empty()) return;
  size_ = std::max(size_, offset + data.size());
  while (!data.empty()) {
    const size_t within = offset % kBlockBytes;
    const size_t length = std::min(data.size(), kBlockBytes - within);
    std::string& block = blocks_[offset / kBlockBytes];
    if (block.empty()) block.resize(kBlockBytes);
    std::memcpy(block.data() + within, data.data(), length);
    data = data.subspan(length);
    offset += length;
  }
}

size_t SparseBytes::Read(uint64_t offset, MutableByteSpan data) const {
  if (offset >= size_) return 0;
  data = data.first(std::min<uint64_t>(data.size(), size_ - offset));
  const size_t total = data.size();
  while (!data.empty()) {
    const size_t within = offset % kBlockBytes;
    const size_t length = std::min(data.size(), kBlockBytes - within);
    auto block = blocks_.find(offset / kBlockBytes);
    if (block == blocks_.end()) {
      std::memset(data.data(), 0, length);
    } else {
      std::memcpy(data.data(), block->second.data() + within, length);
    }
    data = data.subspan(length);
    offset += length;
  }
  return total;
}

}  // namespace cairnfs::io
