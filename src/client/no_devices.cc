// A library that was built without CUDA.
#include <memory>

#include "client/device.h"

namespace cairnfs::client {
namespace {

class NoDevices final : public Devices {
 public:
  Result<int32_t> Count() override { return 0; }
  Result<Device*> Get(int32_t number) override {
    return MakeError(ErrorCode::kUnavailable, "device " + std::to_string(number) +
                                                  ": this library was built without CUDA (cairnfs_client_build says "
                                                  "host)");
  }
  bool Pins() override { return false; }
  Result<void*> AllocatePinned(uint64_t bytes) override { return AllocateOrdinary(bytes); }
  void FreePinned(void* memory, uint64_t bytes) override { FreeOrdinary(memory, bytes); }
};

}  // namespace

Devices& SystemDevices() {
  static NoDevices devices;
  return devices;
}

const char* SystemDevicesBuild() { return "host"; }

}  // namespace cairnfs::client
