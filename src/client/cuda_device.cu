// Devices by the CUDA runtime, and the kernels. https://docs.nvidia.com/cuda/cuda-runtime-api
// The runtime is linked in; it finds the driver when it is first asked, so that the library loads where there is none.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>

#include "base/machine_limits.h"
#include "client/address_ranges.h"
#include "client/device.h"

namespace cairnfs::client {
namespace {

struct DeviceThreads {
  TileThread state;
  template <typename Run>
  __device__ __forceinline__ void Phase(Run run) {
    run(threadIdx.x, state);
    __syncthreads();
  }
};

__global__ void __launch_bounds__(kTileChunks) HashTiles(const FingerprintJob job, uint32_t first_block) {
  __shared__ TileShared shared;
  DeviceThreads threads;
  HashTile(job, first_block, blockIdx.x, shared, threads);
}

__global__ void FinishBlocks(const FingerprintJob job, uint32_t first_block, uint32_t block_count) {
  const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= block_count) return;
  FinishBlock(job, first_block, at, [](uint32_t* word, uint32_t mask) { atomicOr(word, mask); });
}

Status Failed(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // an error that is not sticky is not left for the caller
  return MakeError(error == cudaErrorMemoryAllocation ? ErrorCode::kRange : ErrorCode::kFailed,
                   what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

// What only the driver has, by the names in its library: the runtime's way to ask for them differs from version to
// version. A function is null where there is no driver.
struct Driver {
  decltype(&::cuInit) init = Find<decltype(&::cuInit)>("cuInit");
  decltype(&::cuDeviceGet) device_get = Find<decltype(&::cuDeviceGet)>("cuDeviceGet");
  decltype(&::cuDevicePrimaryCtxRetain) primary_context =
      Find<decltype(&::cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  decltype(&::cuCtxPushCurrent) push_context = Find<decltype(&::cuCtxPushCurrent)>("cuCtxPushCurrent_v2");
  decltype(&::cuCtxPopCurrent) pop_context = Find<decltype(&::cuCtxPopCurrent)>("cuCtxPopCurrent_v2");
  decltype(&::cuMemGetAddressRange) address_range =
      Find<decltype(&::cuMemGetAddressRange)>("cuMemGetAddressRange_v2");

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }

 private:
  template <typename Function>
  static Function Find(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
  }
};

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string TextOfOldDriver() {
  (void)cudaGetLastError();
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  return "the driver of the machine's GPUs is too old: it is for CUDA " + VersionText(driver) +
         ", and this library needs one for CUDA " + VersionText(runtime);
}

// The device's primary context, which the runtime and torch use; made where there is none yet. It stays. Null: it
// cannot be had.
CUcontext PrimaryContext(int number) {
  const Driver& driver = Driver::Get();
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (driver.init == nullptr || driver.device_get == nullptr || driver.primary_context == nullptr ||
      driver.push_context == nullptr || driver.pop_context == nullptr || driver.init(0) != CUDA_SUCCESS ||
      driver.device_get(&device, number) != CUDA_SUCCESS ||
      driver.primary_context(&context, device) != CUDA_SUCCESS) {
    return nullptr;
  }
  return context;
}

// Makes a context current for one call. The thread then has the context that it had, or none: cudaSetDevice would make
// one on the device that the caller never asked for. Where another thread captures a graph, the call does not spoil it: no
// stream of the library is part of a capture.
class Current {
 public:
  explicit Current(CUcontext context) : pushed_(Driver::Get().push_context(context)) {
    if (pushed_ == CUDA_SUCCESS) exchanged_ = cudaThreadExchangeStreamCaptureMode(&capture_mode_);
  }
  ~Current() {
    if (exchanged_ == cudaSuccess) (void)cudaThreadExchangeStreamCaptureMode(&capture_mode_);
    CUcontext popped = nullptr;
    if (pushed_ == CUDA_SUCCESS) (void)Driver::Get().pop_context(&popped);
  }
  Current(const Current&) = delete;

  // kFailed: nothing may be called, since it would be of another context.
  Status status() const {
    if (pushed_ != CUDA_SUCCESS) {
      return MakeError(ErrorCode::kFailed, "the context cannot be made current: CUresult " + std::to_string(pushed_));
    }
    return Failed(exchanged_, "the mode of captures");
  }

 private:
  const CUresult pushed_;
  cudaError_t exchanged_ = cudaErrorUnknown;
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;  // that of the thread, once exchanged
};

cudaStream_t Stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(EventHandle event) { return static_cast<cudaEvent_t>(event); }

class CudaDevice final : public Device {
 public:
  CudaDevice(int number, CUcontext context) : number_(number), context_(context) {}
  CUcontext context() const { return context_; }

  Status CheckMemory(const void* data, uint64_t bytes, const std::string& what) override {
    const Current current(context_);
    CAIRNFS_RETURN_IF_ERROR(current.status());
    cudaPointerAttributes attributes{};
    const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
    const Status asked = Failed(error, what);
    if (error == cudaErrorInvalidValue) return MakeError(ErrorCode::kStale, asked.error().message);
    CAIRNFS_RETURN_IF_ERROR(asked);
    if (!IsHere(attributes)) {
      return MakeError(ErrorCode::kStale, what + ": its pointer is not of device " + std::to_string(number_) +
                                              "; was it freed, or is it of the host or of another device?");
    }
    const auto begin = reinterpret_cast<uint64_t>(data);
    // Where the driver does not say how far memory reaches, nothing more can be checked.
    if (!RangeAt(begin).has_value()) return {};
    // Torch's expandable segments are many allocations, mapped one behind the other.
    if (CoveredBytes(begin, bytes, [this](uint64_t address) { return RangeAt(address); }) < bytes) {
      return MakeError(ErrorCode::kStale,
                       what + ": " + std::to_string(bytes) + " bytes end past the memory that was allocated there");
    }
    return {};
  }

  Result<void*> Allocate(uint64_t bytes) override {
    void* memory = nullptr;
    const Status status = Call("memory", [&] { return cudaMalloc(&memory, bytes); });
    if (!status.ok()) return status.error().WithContext(std::to_string(bytes) + " bytes");
    return memory;
  }
  void Free(void* memory) override {
    (void)Call("memory", [&] { return cudaFree(memory); });
  }

  Result<StreamHandle> NewStream() override {
    cudaStream_t stream = nullptr;
    CAIRNFS_RETURN_IF_ERROR(
        Call("a new stream", [&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }));
    return StreamHandle{stream};
  }
  void DeleteStream(StreamHandle stream) override {
    (void)Call("a stream", [&] { return cudaStreamDestroy(Stream(stream)); });
  }
  Status WaitForStream(StreamHandle stream) override {
    return Call("a stream", [&] { return cudaStreamSynchronize(Stream(stream)); });
  }
  Result<EventHandle> Record(StreamHandle stream) override {
    cudaEvent_t event = nullptr;
    CAIRNFS_RETURN_IF_ERROR(Call("a new event", [&] {
      return cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
    }));
    const Status recorded = Call("an event", [&] { return cudaEventRecord(event, Stream(stream)); });
    if (!recorded.ok()) {
      DeleteEvent(event);
      return recorded.error();
    }
    return EventHandle{event};
  }
  Status StreamWaits(StreamHandle stream, EventHandle event) override {
    return Call("a stream", [&] { return cudaStreamWaitEvent(Stream(stream), Event(event), 0); });
  }
  Status WaitForEvent(EventHandle event) override {
    return Call("work that was begun", [&] { return cudaEventSynchronize(Event(event)); });
  }
  void DeleteEvent(EventHandle event) override {
    (void)Call("an event", [&] { return cudaEventDestroy(Event(event)); });
  }

  Status CopyToHost(void* to, const void* from, uint64_t bytes, StreamHandle stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  Status CopyToDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) override {
    return Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }
  Status CopyOnDevice(void* to, const void* from, uint64_t bytes, StreamHandle stream) override {
    return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  Status SetToZero(void* memory, uint64_t bytes, StreamHandle stream) override {
    return Call("setting memory", [&] { return cudaMemsetAsync(memory, 0, bytes, Stream(stream)); });
  }
  Status Fingerprint(const FingerprintJob& job, StreamHandle stream) override {
    constexpr uint32_t kThreads = 128;
    return Call("fingerprints", [&] {
      ForEachSlab(job, [&](uint32_t first, uint32_t count) {
        HashTiles<<<count * kTilesPerBlock, kTileChunks, 0, Stream(stream)>>>(job, first);
        FinishBlocks<<<(count + kThreads - 1) / kThreads, kThreads, 0, Stream(stream)>>>(job, first, count);
      });
      return cudaGetLastError();
    });
  }

 private:
  // Calls the runtime, for what the text of an error names. kRange, kFailed.
  template <typename Run>
  Status Call(const char* what, Run run) const {
    const auto named = [&] { return "device " + std::to_string(number_) + ": " + what; };
    const Current current(context_);
    const Status status = current.status();
    if (!status.ok()) return status.error().WithContext(named());
    const cudaError_t error = run();
    return error == cudaSuccess ? Status() : Failed(error, named());
  }
  bool IsHere(const cudaPointerAttributes& attributes) const {
    return attributes.type == cudaMemoryTypeManaged ||
           (attributes.type == cudaMemoryTypeDevice && attributes.device == number_);
  }
  // The allocation of this device that has the address. REQUIRES: the device is current.
  std::optional<AddressRange> RangeAt(uint64_t address) const {
    cudaPointerAttributes attributes{};
    CUdeviceptr begin = 0;
    size_t bytes = 0;
    if (cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)) != cudaSuccess) {
      (void)cudaGetLastError();
      return std::nullopt;
    }
    if (!IsHere(attributes) || Driver::Get().address_range == nullptr ||
        Driver::Get().address_range(&begin, &bytes, address) != CUDA_SUCCESS) {
      return std::nullopt;
    }
    return AddressRange{begin, begin + bytes};
  }
  Status Copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, StreamHandle stream) {
    return Call("a copy", [&] { return cudaMemcpyAsync(to, from, bytes, kind, Stream(stream)); });
  }

  const int number_;
  const CUcontext context_;
};

class CudaDevices final : public Devices {
 public:
  Result<int32_t> Count() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    // The runtime says the same where there is no driver and where the driver is too old.
    const bool is_old = error == cudaErrorInsufficientDriver && Driver::Get().init != nullptr;
    if (is_old) return MakeError(ErrorCode::kFailed, TextOfOldDriver());
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
      (void)cudaGetLastError();
      return 0;
    }
    const Status status = Failed(error, "counting devices");
    if (!status.ok()) return status.error();
    return count;
  }

  Result<Device*> Get(int32_t number) override {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CudaDevice>& device = devices_[number];
    if (device == nullptr) {
      const Result<int32_t> count = Count();
      if (!count.ok() || number < 0 || number >= *count) {
        return MakeError(ErrorCode::kUnavailable,
                         "device " + std::to_string(number) + ": " +
                             (count.ok() ? "there are " + std::to_string(*count) + " CUDA devices here"
                                         : count.error().message));
      }
      const CUcontext context = PrimaryContext(number);
      if (context == nullptr) {
        return MakeError(ErrorCode::kUnavailable,
                         "device " + std::to_string(number) + ": its primary context cannot be had");
      }
      device = std::make_unique<CudaDevice>(number, context);
    }
    return device.get();
  }

  bool Pins() override { return DeviceInUse() != nullptr; }

  Result<void*> AllocatePinned(uint64_t bytes) override {
    const CudaDevice* device = DeviceInUse();
    if (device == nullptr) return AllocateOrdinary(bytes);
    const Current current(device->context());
    CAIRNFS_RETURN_IF_ERROR(current.status());
    // Of more than there is CUDA says many things.
    if (bytes > UsableMemory()) return AllocateOrdinary(bytes);
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    const Status status = Failed(error, std::to_string(bytes) + " bytes to be pinned");
    if (error == cudaErrorMemoryAllocation) {
      return MakeError(ErrorCode::kExhausted,
                       status.error().message + "; less may be possible, or a higher `ulimit -l`");
    }
    CAIRNFS_RETURN_IF_ERROR(status);
    const std::lock_guard lock(mutex_);
    try {
      pinned_.insert(memory);
    } catch (const std::bad_alloc&) {
      (void)cudaFreeHost(memory);
      throw;
    }
    return memory;
  }
  void FreePinned(void* memory, uint64_t bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (pinned_.erase(memory) == 0) {
        FreeOrdinary(memory, bytes);
        return;
      }
    }
    const Current current(DeviceInUse()->context());
    if (current.status().ok()) (void)cudaFreeHost(memory);
  }

 private:
  // Any device that was asked for; null: none was. Others are left alone: a context takes memory of its device.
  const CudaDevice* DeviceInUse() {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, device] : devices_) {
      if (device != nullptr) return device.get();
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<CudaDevice>> devices_;
  std::set<void*> pinned_;
};

}  // namespace

Devices& SystemDevices() {
  static auto* const devices = new CudaDevices;  // for as long as the process: the driver may be gone before statics
  return *devices;
}

#define CAIRNFS_TEXT_OF_INNER(x) #x
#define CAIRNFS_TEXT_OF(x) CAIRNFS_TEXT_OF_INNER(x)
const char* SystemDevicesBuild() {
  return "cuda " CAIRNFS_TEXT_OF(__CUDACC_VER_MAJOR__) "." CAIRNFS_TEXT_OF(__CUDACC_VER_MINOR__);
}

}  // namespace cairnfs::client
