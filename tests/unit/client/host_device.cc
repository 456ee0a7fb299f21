#include "host_device.h"

#include <cstdlib>
#include <cstring>

namespace cairnfs::client {
namespace {

struct ThreadsInTurn {
  TileThread states[kTileChunks];
  template <typename Run>
  void Phase(Run run) {
    for (uint32_t thread = 0; thread < kTileChunks; thread++) run(thread, states[thread]);
  }
};

}  // namespace

HostDevice::~HostDevice() {
  for (const auto& [memory, bytes] : memory_) std::free(const_cast<std::byte*>(memory));
}

bool HostDevice::Has(const void* data, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(data);
  auto found = memory_.upper_bound(at);
  if (found == memory_.begin()) return false;
  --found;
  return static_cast<uint64_t>(at - found->first) + bytes <= found->second;
}

Status HostDevice::CheckMemory(const void* data, uint64_t bytes, const std::string& what) {
  if (!Has(data, bytes)) return MakeError(ErrorCode::kStale, what + ": its pointer is not of this device");
  return {};
}

Result<void*> HostDevice::Allocate(uint64_t bytes) {
  if (bytes > room_bytes) return MakeError(ErrorCode::kRange, std::to_string(bytes) + " bytes: no memory");
  room_bytes -= room_bytes == UINT64_MAX ? 0 : bytes;
  std::unique_ptr<void, decltype(&std::free)> memory(std::malloc(bytes), &std::free);
  const std::lock_guard lock(mutex_);
  memory_[static_cast<std::byte*>(memory.get())] = bytes;
  return memory.release();
}

void HostDevice::Free(void* memory) {
  const std::lock_guard lock(mutex_);
  memory_.erase(static_cast<std::byte*>(memory));
  std::free(memory);
}

Result<StreamHandle> HostDevice::NewStream() {
  StreamHandle made = new int;
  handles++;
  return made;
}
void HostDevice::DeleteStream(StreamHandle stream) {
  handles--;
  delete static_cast<int*>(stream);
}
Result<EventHandle> HostDevice::Record(StreamHandle) {
  EventHandle made = new int;
  handles++;
  return made;
}
void HostDevice::DeleteEvent(EventHandle event) {
  handles--;
  delete static_cast<int*>(event);
}

Status HostDevice::CopyToHost(void* to, const void* from, uint64_t bytes, StreamHandle) {
  if (before_copy) before_copy();
  if (copies_until_failure >= 0 && copies_until_failure-- == 0) return MakeError(ErrorCode::kFailed, "a copy failed");
  if (!Has(from, bytes)) return MakeError(ErrorCode::kFailed, "a copy from other memory than the device's");
  bytes_to_host += bytes;
  std::memcpy(to, from, bytes);
  return {};
}
Status HostDevice::CopyToDevice(void* to, const void* from, uint64_t bytes, StreamHandle) {
  if (!Has(to, bytes)) return MakeError(ErrorCode::kFailed, "a copy to other memory than the device's");
  std::memcpy(to, from, bytes);
  return {};
}
Status HostDevice::CopyOnDevice(void* to, const void* from, uint64_t bytes, StreamHandle) {
  if (!Has(to, bytes) || !Has(from, bytes)) return MakeError(ErrorCode::kFailed, "a copy of other memory");
  std::memcpy(to, from, bytes);
  return {};
}
Status HostDevice::SetToZero(void* memory, uint64_t bytes, StreamHandle) {
  if (!Has(memory, bytes)) return MakeError(ErrorCode::kFailed, "zeros for other memory than the device's");
  std::memset(memory, 0, bytes);
  return {};
}

Status HostDevice::Fingerprint(const FingerprintJob& job, StreamHandle) {
  auto shared = std::make_unique<TileShared>();
  auto threads = std::make_unique<ThreadsInTurn>();
  // What one tile leaves there, the next must not see.
  ForEachSlab(job, [&](uint32_t first, uint32_t count) {
    for (uint32_t tile = 0; tile < count * kTilesPerBlock; tile++) {
      std::memset(shared.get(), 0xa5, sizeof *shared);
      HashTile(job, first, tile, *shared, *threads);
    }
    for (uint32_t at = 0; at < count; at++) {
      FinishBlock(job, first, at, [](uint32_t* word, uint32_t mask) { *word |= mask; });
    }
  });
  return {};
}

Result<Device*> HostDevices::Get(int32_t number) {
  if (number < 0 || number > 1) return MakeError(ErrorCode::kUnavailable, "there are 2 devices");
  return &devices[number];
}
Result<void*> HostDevices::AllocatePinned(uint64_t bytes) {
  if (bytes > pinned_max) return MakeError(ErrorCode::kExhausted, std::to_string(bytes) + " bytes cannot be pinned");
  CAIRNFS_ASSIGN_OR_RETURN(void* memory, AllocateOrdinary(bytes));
  const std::lock_guard lock(mutex_);
  if (pins) {
    pinned_bytes += static_cast<int64_t>(bytes);
  } else {
    ordinary_.insert(memory);
  }
  return memory;
}
void HostDevices::FreePinned(void* memory, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  pinned_bytes -= ordinary_.erase(memory) > 0 ? 0 : static_cast<int64_t>(bytes);
  FreeOrdinary(memory, bytes);
}

}  // namespace cairnfs::client
