// The C ABI: structs of callers, handles, and what keeps exceptions inside.
#include "cairnfs/client.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "client/block_digest.h"
#include "client/errors.h"
#include "client/host_memory.h"
#include "client/layout.h"
#include "client/loader.h"
#include "client/saver.h"

struct cairnfs_saver {
  std::unique_ptr<cairnfs::client::Saver> saver;
};
struct cairnfs_save {
  std::shared_ptr<cairnfs::client::SaveOutcome> outcome;
};
struct cairnfs_loader {
  std::unique_ptr<cairnfs::client::Loader> loader;
};

namespace cairnfs::client {
namespace {

// A struct of the caller, whose fields end where its size says; what it lacks is 0. kInvalidArgument.
template <typename Struct>
Result<Struct> TakeStruct(const Struct* from, const char* what) {
  if (from == nullptr) return InvalidArgument(std::string(what) + " is NULL");
  if (from->struct_bytes < sizeof from->struct_bytes || from->struct_bytes > 4096) {
    return InvalidArgument(std::string(what) + ".struct_bytes is " + std::to_string(from->struct_bytes) +
                           ", and should be sizeof, " + std::to_string(sizeof(Struct)));
  }
  Struct taken = {};
  std::memcpy(&taken, from, std::min<size_t>(from->struct_bytes, sizeof taken));
  taken.struct_bytes = sizeof taken;
  return taken;
}

// Of a caller that may have none. kInvalidArgument.
template <typename Struct>
Result<Struct> TakeOptions(const Struct* from) {
  return from == nullptr ? Struct{} : TakeStruct(from, "options");
}

template <typename Call>
int32_t Guarded(cairnfs_error* error, Call call) {
  try {
    return Report(call(), error);
  } catch (const std::bad_alloc&) {
    return Report(NoMemory("the call"), error);
  } catch (const std::system_error&) {
    return Report(NoMemory("a lock or a thread"), error);
  } catch (const std::exception& thrown) {
    return Report(NoMemory(thrown.what()), error);  // of the standard library: a size that no memory can have
  }
}

Status FingerprintHost(const std::byte* data, uint64_t bytes, uint8_t* digests) {
  CAIRNFS_RETURN_IF_ERROR(HostMemory::Now().Check(data, bytes, HostMemory::Use::kRead, "data"));
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    const Digest digest = DigestOfBlock({data + at, std::min<uint64_t>(kBlockBytes, bytes - at)});
    std::memcpy(digests + at / kBlockBytes * Digest::kBytes, digest.bytes.data(), Digest::kBytes);
  }
  return {};
}

struct DeviceMemory {
  Device* device;
  void* memory = nullptr;
  ~DeviceMemory() { device->Free(memory); }
};
struct PinnedMemory {
  Devices* devices;
  uint64_t bytes;
  void* memory = nullptr;
  ~PinnedMemory() {
    if (memory != nullptr) devices->FreePinned(memory, bytes);
  }
};

Status FingerprintDevice(const void* data, uint64_t bytes, int32_t number, StreamHandle stream, uint8_t* digests) {
  Devices& devices = SystemDevices();
  CAIRNFS_ASSIGN_OR_RETURN(Device * device, devices.Get(number));
  CAIRNFS_RETURN_IF_ERROR(device->CheckMemory(data, bytes, "data"));
  const uint64_t blocks = BlocksOf(bytes);
  if (blocks == 0) return {};
  const auto slab = static_cast<uint32_t>(std::min<uint64_t>(blocks, kSlabBlocksMax));
  DeviceMemory table{device};
  DeviceMemory values{device};
  DeviceMemory results{device};
  PinnedMemory host{&devices, std::max<uint64_t>(blocks * Digest::kBytes, sizeof(FingerprintTensor))};
  CAIRNFS_ASSIGN_OR_RETURN(table.memory, device->Allocate(sizeof(FingerprintTensor)));
  CAIRNFS_ASSIGN_OR_RETURN(values.memory, device->Allocate(uint64_t{slab} * kTilesPerBlock * Digest::kBytes));
  CAIRNFS_ASSIGN_OR_RETURN(results.memory, device->Allocate(blocks * Digest::kBytes));
  CAIRNFS_ASSIGN_OR_RETURN(host.memory, devices.AllocatePinned(host.bytes));
  const FingerprintTensor tensor{static_cast<const unsigned char*>(data), bytes, 0, 0, 0, 0};
  std::memcpy(host.memory, &tensor, sizeof tensor);
  const FingerprintJob job{static_cast<const FingerprintTensor*>(table.memory),
                           1,
                           static_cast<uint32_t>(blocks),
                           slab,
                           static_cast<uint32_t*>(values.memory),
                           nullptr,
                           static_cast<uint32_t*>(results.memory),
                           nullptr};
  Status status = device->CopyToDevice(table.memory, host.memory, sizeof tensor, stream);
  if (status.ok()) status = device->Fingerprint(job, stream);
  if (status.ok()) status = device->WaitForStream(stream);  // the table has been read
  if (status.ok()) status = device->CopyToHost(host.memory, results.memory, blocks * Digest::kBytes, stream);
  const Status waited = device->WaitForStream(stream);
  CAIRNFS_RETURN_IF_ERROR(status);
  CAIRNFS_RETURN_IF_ERROR(waited);
  std::memcpy(digests, host.memory, blocks * Digest::kBytes);
  return {};
}

}  // namespace
}  // namespace cairnfs::client

using cairnfs::Error;
using cairnfs::InvalidArgument;
using cairnfs::Status;
namespace client = cairnfs::client;

int32_t cairnfs_client_abi(void) { return CAIRNFS_CLIENT_ABI; }
const char* cairnfs_client_build(void) { return client::SystemDevicesBuild(); }

int32_t cairnfs_device_count(int32_t* count, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (count == nullptr) return InvalidArgument("count is NULL");
    CAIRNFS_ASSIGN_OR_RETURN(*count, client::SystemDevices().Count());
    return {};
  });
}

int32_t cairnfs_saver_open(const cairnfs_saver_options* options, cairnfs_saver** saver, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (saver == nullptr) return InvalidArgument("saver is NULL");
    CAIRNFS_ASSIGN_OR_RETURN(const auto taken, client::TakeOptions(options));
    CAIRNFS_ASSIGN_OR_RETURN(auto opened, client::Saver::Open(taken, client::SystemDevices()));
    *saver = new cairnfs_saver{std::move(opened)};
    return {};
  });
}

void cairnfs_saver_close(cairnfs_saver* saver) { delete saver; }

int32_t cairnfs_save_start(cairnfs_saver* saver, const cairnfs_save_request* request, cairnfs_save** save,
                           cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (saver == nullptr || save == nullptr) return InvalidArgument("saver or save is NULL");
    CAIRNFS_ASSIGN_OR_RETURN(const cairnfs_save_request taken, client::TakeStruct(request, "request"));
    auto handle = std::make_unique<cairnfs_save>();
    CAIRNFS_ASSIGN_OR_RETURN(handle->outcome, saver->saver->Start(taken));
    *save = handle.release();
    return {};
  });
}

int32_t cairnfs_save_wait_source(cairnfs_save* save, int64_t timeout_ms, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (save == nullptr) return InvalidArgument("save is NULL");
    return save->outcome->WaitForSource(timeout_ms);
  });
}

int32_t cairnfs_save_wait(cairnfs_save* save, int64_t timeout_ms, cairnfs_save_result* result, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (save == nullptr) return InvalidArgument("save is NULL");
    if (result != nullptr) CAIRNFS_RETURN_IF_ERROR(client::TakeStruct(result, "result"));
    CAIRNFS_ASSIGN_OR_RETURN(cairnfs_save_result filled, save->outcome->Wait(timeout_ms));
    if (result != nullptr) {
      filled.struct_bytes = result->struct_bytes;
      std::memcpy(result, &filled, std::min<size_t>(result->struct_bytes, sizeof filled));
    }
    return {};
  });
}

void cairnfs_save_release(cairnfs_save* save) { delete save; }

int32_t cairnfs_loader_open(const cairnfs_loader_options* options, cairnfs_loader** loader, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (loader == nullptr) return InvalidArgument("loader is NULL");
    CAIRNFS_ASSIGN_OR_RETURN(const auto taken, client::TakeOptions(options));
    CAIRNFS_ASSIGN_OR_RETURN(auto opened, client::Loader::Open(taken, client::SystemDevices()));
    *loader = new cairnfs_loader{std::move(opened)};
    return {};
  });
}

void cairnfs_loader_close(cairnfs_loader* loader) { delete loader; }

int32_t cairnfs_load(cairnfs_loader* loader, const cairnfs_load_request* request, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    if (loader == nullptr) return InvalidArgument("loader is NULL");
    CAIRNFS_ASSIGN_OR_RETURN(const cairnfs_load_request taken, client::TakeStruct(request, "request"));
    return loader->loader->Load(taken);
  });
}

int32_t cairnfs_fingerprint(const void* data, uint64_t bytes, int32_t device, void* stream, uint8_t* digests,
                            uint64_t digests_bytes, cairnfs_error* error) {
  return client::Guarded(error, [&]() -> Status {
    const uint64_t blocks = client::BlocksOf(bytes);
    if (digests_bytes / CAIRNFS_DIGEST_BYTES < blocks || (digests == nullptr && blocks > 0)) {
      return InvalidArgument("digests has room for " + std::to_string(digests_bytes) + " bytes, and " +
                             std::to_string(blocks * CAIRNFS_DIGEST_BYTES) + " are needed");
    }
    if (device == CAIRNFS_HOST) return client::FingerprintHost(static_cast<const std::byte*>(data), bytes, digests);
    return client::FingerprintDevice(data, bytes, device, stream, digests);
  });
}
