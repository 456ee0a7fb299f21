// Page-aligned memory for direct I/O outside the buffer pool.
#pragma once

#include <sys/mman.h>

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/types.h"

namespace cairnfs::store {

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte[], FreeDeleter>;

// REQUIRES: size is a multiple of kPageBytes.
inline AlignedMemory AllocateUntouched(size_t size) {
  assert(size % kPageBytes == 0);
  size_t alignment = size >= 2 * kMiB && size % (2 * kMiB) == 0 ? 2 * kMiB : kPageBytes;  // lets huge pages serve it
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment > kPageBytes) (void)madvise(memory, size, MADV_HUGEPAGE);  // best effort
  return AlignedMemory(memory);
}

// The same, zeroed and so touched: for memory that is kept.
inline AlignedMemory AllocateAligned(size_t size) {
  AlignedMemory memory = AllocateUntouched(size);
  std::memset(memory.get(), 0, size);
  return memory;
}

}  // namespace cairnfs::store
