// Devices in memory of the host: their memory is the host's, and the kernels are those of CUDA, run one thread after
// another. What a caller may do with memory of a device is checked.
//
// Work on a stream is done when somebody waits for it, and now and then before: so whoever should wait and does not
// sees old bytes, or gives memory away too early.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>

#include "client/device.h"

namespace cairnfs::client {

class HostDevice final : public Device {
 public:
  ~HostDevice() override;  // work that nobody waited for is not done
  Status CheckMemory(const void* data, uint64_t bytes, const std::string& what) override;
  Result<void*> Allocate(uint64_t bytes) override;
  void Free(void* memory) override;
  Result<StreamHandle> NewStream() override;
  void DeleteStream(StreamHandle stream) override;
  Status WaitForStream(StreamHandle stream) override;
  Result<EventHandle> Record(StreamHandle stream) override;
  Status StreamWaits(StreamHandle stream, EventHandle event) override;
  Status WaitForEvent(EventHandle event) override;
  void DeleteEvent(EventHandle event) override;
  Status CopyToHost(void* to, const void* from, uint64_t bytes, StreamHandle stream) override;
  Status CopyToDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) override;
  Status CopyOnDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) override;
  Status SetToZero(void* memory, uint64_t bytes, StreamHandle stream) override;
  Status Fingerprint(const FingerprintJob& job, StreamHandle stream) override;

  // Puts work on the stream, as a kernel of the caller is. It puts no work on streams itself.
  void Put(StreamHandle stream, std::function<void()> work);
  // What was allocated and not freed.
  uint64_t AllocatedBytes();

  std::atomic<uint64_t> room_bytes = UINT64_MAX;   // what Allocate still gives
  std::atomic<int64_t> copies_until_failure = -1;  // then CopyToHost fails; negative: never
  std::function<void()> before_copy;               // of CopyToHost; may be empty
  std::atomic<int64_t> handles = 0;                // streams and events that were not deleted
  std::atomic<uint64_t> bytes_to_host = 0;

 private:
  struct Stream {
    std::deque<std::function<void()>> work;  // that is not done
    uint64_t done = 0;                       // pieces of work, since the stream was made
  };
  struct Event {
    StreamHandle stream;
    uint64_t work;  // it happens when so many pieces are done
  };
  bool Has(const void* data, uint64_t bytes);
  void DoWork(StreamHandle stream, uint64_t until_done);  // REQUIRES: work_mutex_ is held

  std::mutex mutex_;
  std::map<const std::byte*, uint64_t> memory_;
  std::recursive_mutex work_mutex_;  // held while work is done, which may do another stream's first
  std::map<StreamHandle, Stream> streams_;
  std::minstd_rand random_;
};

// Two devices.
class HostDevices final : public Devices {
 public:
  Result<int32_t> Count() override { return 2; }
  Result<Device*> Get(int32_t number) override;
  bool Pins() override { return pins; }
  Result<void*> AllocatePinned(uint64_t bytes) override;
  void FreePinned(void* memory, uint64_t bytes) override;
  HostDevice devices[2];
  std::atomic<bool> pins = true;
  std::atomic<uint64_t> pinned_max = UINT64_MAX;
  std::atomic<int64_t> pinned_bytes = 0;

 private:
  std::mutex mutex_;
  std::set<void*> ordinary_;
};

}  // namespace cairnfs::client
