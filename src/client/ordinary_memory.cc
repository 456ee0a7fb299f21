#include <sys/mman.h>

#include "base/machine_limits.h"
#include "client/device.h"

namespace cairnfs::client {

Result<void*> AllocateOrdinary(uint64_t bytes) {
  const uint64_t all = UsableMemory();  // mmap promises more than there is
  void* memory =
      bytes > all ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return MakeError(ErrorCode::kExhausted, std::to_string(bytes) +
                                                " bytes of memory cannot be had; the machine or the container has " +
                                                std::to_string(all));
  }
  // Fewer page faults; refused where the kernel has no huge pages, which does no harm.
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void FreeOrdinary(void* memory, uint64_t bytes) { munmap(memory, bytes); }

OrdinaryMemory::~OrdinaryMemory() {
  if (data_ != nullptr) FreeOrdinary(data_, bytes_);
}

Status OrdinaryMemory::Reserve(uint64_t bytes) {
  if (bytes <= bytes_) return {};
  if (data_ != nullptr) FreeOrdinary(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  CAIRNFS_ASSIGN_OR_RETURN(void* memory, AllocateOrdinary(bytes));
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  return {};
}

}  // namespace cairnfs::client
