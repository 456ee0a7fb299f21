// Devices by the CUDA runtime, and the kernels. https://docs.nvidia.com/cuda/cuda-runtime-api
// The runtime is linked in; it finds the driver when it is first asked, so that the library loads where there is none.
#include <cuda.h>
#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

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

__global__ void __launch_bounds__(kTileChunks) HashTiles(const FingerprintJob job) {
  __shared__ TileShared shared;
  DeviceThreads threads;
  HashTile(job, blockIdx.x, shared, threads);
}

__global__ void FinishBlocks(const FingerprintJob job) {
  const uint32_t block = blockIdx.x * blockDim.x + threadIdx.x;
  if (block >= job.block_count) return;
  FinishBlock(job, block, [](uint32_t* word, uint32_t mask) { atomicOr(word, mask); });
}

Status Failed(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // an error that is not sticky is not left for the caller
  return MakeError(error == cudaErrorMemoryAllocation ? ErrorCode::kRange : ErrorCode::kFailed,
                   what + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

// Makes a device current for one call.
class Current {
 public:
  explicit Current(int number) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = number;
    (void)cudaSetDevice(number);
  }
  ~Current() { (void)cudaSetDevice(before_); }
  Current(const Current&) = delete;

 private:
  int before_ = 0;
};

cudaStream_t Stream(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(EventHandle event) { return static_cast<cudaEvent_t>(event); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : number_(number) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 3020, cudaEnableDefault, &result) ==
            cudaSuccess &&
        result == cudaDriverEntryPointSuccess) {
      address_range_ = reinterpret_cast<AddressRange>(found);
    }
  }

  Status CheckMemory(const void* data, uint64_t bytes, const std::string& what) override {
    const Current current(number_);
    cudaPointerAttributes attributes{};
    const Status asked = Failed(cudaPointerGetAttributes(&attributes, data), what);
    if (!asked.ok()) return MakeError(ErrorCode::kStale, asked.error().message);
    if ((attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged) ||
        (attributes.type == cudaMemoryTypeDevice && attributes.device != number_)) {
      return MakeError(ErrorCode::kStale, what + ": its pointer is not of device " + std::to_string(number_) +
                                              "; was it freed, or is it of the host or of another device?");
    }
    CUdeviceptr begin = 0;
    size_t size = 0;
    if (address_range_ == nullptr ||
        address_range_(&begin, &size, reinterpret_cast<CUdeviceptr>(data)) != CUDA_SUCCESS) {
      return {};
    }
    if (bytes > begin + size - reinterpret_cast<CUdeviceptr>(data)) {
      return MakeError(ErrorCode::kStale,
                       what + ": " + std::to_string(bytes) + " bytes end past the memory that was allocated there");
    }
    return {};
  }

  Result<void*> Allocate(uint64_t bytes) override {
    const Current current(number_);
    void* memory = nullptr;
    const Status status = Failed(cudaMalloc(&memory, bytes), "device " + std::to_string(number_) + ": " +
                                                                 std::to_string(bytes) + " bytes");
    if (!status.ok()) return status.error();
    return memory;
  }
  void Free(void* memory) override {
    const Current current(number_);
    (void)cudaFree(memory);
  }

  Result<StreamHandle> NewStream() override {
    const Current current(number_);
    cudaStream_t stream = nullptr;
    const Status status = Failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), What("a new stream"));
    if (!status.ok()) return status.error();
    return StreamHandle{stream};
  }
  void DeleteStream(StreamHandle stream) override {
    const Current current(number_);
    (void)cudaStreamDestroy(Stream(stream));
  }
  Status WaitForStream(StreamHandle stream) override {
    const Current current(number_);
    return Failed(cudaStreamSynchronize(Stream(stream)), What("a stream"));
  }
  Result<EventHandle> Record(StreamHandle stream) override {
    const Current current(number_);
    cudaEvent_t event = nullptr;
    const Status made =
        Failed(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), What("a new event"));
    if (!made.ok()) return made.error();
    const Status recorded = Failed(cudaEventRecord(event, Stream(stream)), What("an event"));
    if (!recorded.ok()) {
      (void)cudaEventDestroy(event);
      return recorded.error();
    }
    return EventHandle{event};
  }
  Status StreamWaits(StreamHandle stream, EventHandle event) override {
    const Current current(number_);
    return Failed(cudaStreamWaitEvent(Stream(stream), Event(event), 0), What("a stream"));
  }
  Status WaitForEvent(EventHandle event) override {
    const Current current(number_);
    return Failed(cudaEventSynchronize(Event(event)), What("work that was begun"));
  }
  void DeleteEvent(EventHandle event) override {
    const Current current(number_);
    (void)cudaEventDestroy(Event(event));
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
    const Current current(number_);
    return Failed(cudaMemsetAsync(memory, 0, bytes, Stream(stream)), What("setting memory"));
  }
  Status Fingerprint(const FingerprintJob& job, StreamHandle stream) override {
    const Current current(number_);
    constexpr uint32_t kThreads = 128;
    if (job.block_count == 0) return {};
    HashTiles<<<job.block_count * kTilesPerBlock, kTileChunks, 0, Stream(stream)>>>(job);
    FinishBlocks<<<(job.block_count + kThreads - 1) / kThreads, kThreads, 0, Stream(stream)>>>(job);
    return Failed(cudaGetLastError(), What("fingerprints"));
  }

 private:
  using AddressRange = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  std::string What(const char* what) const { return "device " + std::to_string(number_) + ": " + what; }
  Status Copy(void* to, const void* from, uint64_t bytes, cudaMemcpyKind kind, StreamHandle stream) {
    const Current current(number_);
    return Failed(cudaMemcpyAsync(to, from, bytes, kind, Stream(stream)), What("a copy"));
  }

  const int number_;
  AddressRange address_range_ = nullptr;
};

class CudaDevices final : public Devices {
 public:
  Result<int32_t> Count() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
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
    auto& device = devices_[number];
    if (device == nullptr) {
      const Result<int32_t> count = Count();
      if (!count.ok() || number < 0 || number >= *count) {
        return MakeError(ErrorCode::kUnavailable,
                         "device " + std::to_string(number) + ": " +
                             (count.ok() ? "there are " + std::to_string(*count) + " CUDA devices here"
                                         : count.error().message));
      }
      device = std::make_unique<CudaDevice>(number);
    }
    return device.get();
  }

  Result<void*> AllocatePinned(uint64_t bytes) override {
    const Result<int32_t> count = Count();
    if (!count.ok() || *count == 0) return AllocateOrdinary(bytes);
    void* memory = nullptr;
    const Status status =
        Failed(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), std::to_string(bytes) + " bytes to be pinned");
    if (!status.ok()) {
      return MakeError(ErrorCode::kExhausted,
                       status.error().message + "; less may be possible, or a higher `ulimit -l`");
    }
    const std::lock_guard lock(mutex_);
    try {
      pinned_[memory] = bytes;
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
    (void)cudaFreeHost(memory);
  }

 private:
  std::mutex mutex_;
  std::map<int32_t, std::unique_ptr<CudaDevice>> devices_;
  std::map<void*, uint64_t> pinned_;
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
