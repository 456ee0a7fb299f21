#include "host_device.h"

#include <cassert>
#include <cstdlib>
#include <cstring>
#include <iterator>

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

uint64_t HostDevice::AllocatedBytes() {
  const std::lock_guard lock(mutex_);
  uint64_t sum = 0;
  for (const auto& [memory, bytes] : memory_) sum += bytes;
  return sum;
}

Result<StreamHandle> HostDevice::NewStream() {
  StreamHandle made = new int;
  handles++;
  return made;
}
void HostDevice::DeleteStream(StreamHandle stream) {
  const std::lock_guard lock(work_mutex_);
  const auto found = streams_.find(stream);
  if (found != streams_.end()) {
    assert(found->second.work.empty());
    streams_.erase(found);
  }
  handles--;
  delete static_cast<int*>(stream);
}

void HostDevice::Put(StreamHandle stream, std::function<void()> work) {
  const std::lock_guard lock(work_mutex_);
  streams_[stream].work.push_back(std::move(work));
  // A device may also be early.
  if (random_() % 4 != 0) return;
  const auto some = std::next(streams_.begin(), static_cast<ptrdiff_t>(random_() % streams_.size()));
  DoWork(some->first, some->second.done + random_() % 3);
}
void HostDevice::DoWork(StreamHandle stream, uint64_t until_done) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  auto& [work, done] = found->second;
  while (!work.empty() && done < until_done) {
    work.front()();
    work.pop_front();
    done++;
  }
}

Status HostDevice::WaitForStream(StreamHandle stream) {
  const std::lock_guard lock(work_mutex_);
  DoWork(stream, UINT64_MAX);
  return {};
}
Result<EventHandle> HostDevice::Record(StreamHandle stream) {
  const std::lock_guard lock(work_mutex_);
  const Stream& on = streams_[stream];
  EventHandle made = new Event{stream, on.done + on.work.size()};
  handles++;
  return made;
}
Status HostDevice::StreamWaits(StreamHandle stream, EventHandle event) {
  Put(stream, [this, event = *static_cast<Event*>(event)] { DoWork(event.stream, event.work); });
  return {};
}
Status HostDevice::WaitForEvent(EventHandle event) {
  const std::lock_guard lock(work_mutex_);
  const auto* of = static_cast<Event*>(event);
  DoWork(of->stream, of->work);
  return {};
}
void HostDevice::DeleteEvent(EventHandle event) {
  handles--;
  delete static_cast<Event*>(event);
}

Status HostDevice::CopyToHost(void* to, const void* from, uint64_t bytes, StreamHandle stream) {
  if (before_copy) before_copy();
  if (copies_until_failure >= 0 && copies_until_failure-- == 0) return MakeError(ErrorCode::kFailed, "a copy failed");
  if (!Has(from, bytes)) return MakeError(ErrorCode::kFailed, "a copy from other memory than the device's");
  bytes_to_host += bytes;
  Put(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  return {};
}
Status HostDevice::CopyToDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) {
  if (!Has(to, bytes)) return MakeError(ErrorCode::kFailed, "a copy to other memory than the device's");
  Put(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  return {};
}
Status HostDevice::CopyOnDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) {
  if (!Has(to, bytes) || !Has(from, bytes)) return MakeError(ErrorCode::kFailed, "a copy of other memory");
  Put(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  return {};
}
Status HostDevice::SetToZero(void* memory, uint64_t bytes, StreamHandle stream) {
  if (!Has(memory, bytes)) return MakeError(ErrorCode::kFailed, "zeros for other memory than the device's");
  Put(stream, [memory, bytes] { std::memset(memory, 0, bytes); });
  return {};
}

Status HostDevice::Fingerprint(const FingerprintJob& job, StreamHandle stream) {
  struct Room {
    TileShared shared;
    ThreadsInTurn threads;
  };
  // Allocated here: whoever waits for the work is not told of errors.
  Put(stream, [job, room = std::make_shared<Room>()] {
    ForEachSlab(job, [&](uint32_t first, uint32_t count) {
      for (uint32_t tile = 0; tile < count * kTilesPerBlock; tile++) {
        std::memset(&room->shared, 0xa5, sizeof room->shared);  // what one tile leaves there, the next must not see
        HashTile(job, first, tile, room->shared, room->threads);
      }
      for (uint32_t at = 0; at < count; at++) {
        FinishBlock(job, first, at, [](uint32_t* word, uint32_t mask) { *word |= mask; });
      }
    });
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
