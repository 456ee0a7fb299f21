// What the library asks of CUDA: devices, their memory and streams, copies, fingerprints. One implementation is CUDA
// (cuda_device.cu), one says that there is no device (no_devices.cc), and tests have one in memory of the host.
//
// Streams and events are handles of the implementation (cudaStream_t, cudaEvent_t). Work on one stream runs in the
// order in which it was put there. Functions may be called from any thread at once, those of one stream by one at a
// time. Errors: kFailed, with the text of CUDA, but for what is said.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "client/fingerprint_kernel.h"

namespace cairnfs::client {

using StreamHandle = void*;
using EventHandle = void*;

class Device {
 public:
  virtual ~Device() = default;

  // kStale: [data, data + bytes) is not memory of this device. The message begins with `what`.
  virtual Status CheckMemory(const void* data, uint64_t bytes, const std::string& what) = 0;
  // kRange: the device has not so much memory left. Free: nothing that uses the memory runs; null is allowed.
  virtual Result<void*> Allocate(uint64_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  virtual Result<StreamHandle> NewStream() = 0;
  virtual void DeleteStream(StreamHandle stream) = 0;  // once its work is done
  virtual Status WaitForStream(StreamHandle stream) = 0;
  // An event that happens when what is on the stream now is done.
  virtual Result<EventHandle> Record(StreamHandle stream) = 0;
  virtual Status StreamWaits(StreamHandle stream, EventHandle event) = 0;
  virtual Status WaitForEvent(EventHandle event) = 0;
  virtual void DeleteEvent(EventHandle event) = 0;

  // Put a copy on the stream and return. Memory of the host is pinned.
  virtual Status CopyToHost(void* to, const void* from, uint64_t bytes, StreamHandle stream) = 0;
  virtual Status CopyToDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) = 0;
  virtual Status CopyOnDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) = 0;
  virtual Status SetToZero(void* memory, uint64_t bytes, StreamHandle stream) = 0;
  // Puts both kernels on the stream. REQUIRES (unchecked): all pointers are as FingerprintJob says.
  virtual Status Fingerprint(const FingerprintJob& job, StreamHandle stream) = 0;
};

class Devices {
 public:
  virtual ~Devices() = default;
  virtual Result<int32_t> Count() = 0;
  // It stays as long as the process. kUnavailable: there is none of that number, and why.
  virtual Result<Device*> Get(int32_t number) = 0;
  // Whether memory of the host is pinned from now on: once a device was got. To pin takes a device's context.
  virtual bool Pins() = 0;
  // Memory of the host, pinned where Pins. kExhausted: so much cannot be had, and how much can be locked.
  virtual Result<void*> AllocatePinned(uint64_t bytes) = 0;
  virtual void FreePinned(void* memory, uint64_t bytes) = 0;
};

// Those of the machine: what the library was built for. Any thread.
Devices& SystemDevices();
const char* SystemDevicesBuild();  // cairnfs_client_build

// Memory of the host that is not pinned: kExhausted where the machine has less.
Result<void*> AllocateOrdinary(uint64_t bytes);
void FreeOrdinary(void* memory, uint64_t bytes);

// A buffer of it.
class OrdinaryMemory {
 public:
  OrdinaryMemory() = default;
  ~OrdinaryMemory();
  OrdinaryMemory(const OrdinaryMemory&) = delete;

  // Makes it as large as that if it is smaller; what was in it is lost.
  Status Reserve(uint64_t bytes);
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace cairnfs::client
