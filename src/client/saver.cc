#include "client/saver.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/machine_limits.h"
#include "base/start_thread.h"
#include "client/arguments.h"

namespace cairnfs::client {
namespace {

constexpr uint64_t kHostRingBytes = 64 * kMiB;
constexpr uint64_t kOwnRingBytesMin = 8 * kMiB;
constexpr uint32_t kCopiesInFlight = 4;

// How many ranks this host has, as torchrun tells each of them: pinned memory is not swapped, and all take of it.
uint64_t RanksOfHost() {
  const char* text = std::getenv("LOCAL_WORLD_SIZE");
  uint64_t ranks = 1;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), ranks);
  return std::max<uint64_t>(ranks, 1);
}

}  // namespace

Result<std::unique_ptr<Saver>> Saver::Open(const cairnfs_saver_options& options, Devices& devices) {
  CAIRNFS_RETURN_IF_ERROR(CheckOptions(options.writers, options.ring_bytes, "writers"));
  if (options.copies_in_flight > 64) {
    return InvalidArgument("copies_in_flight is " + std::to_string(options.copies_in_flight) +
                           ", and at most 64 is possible");
  }
  if (options.snapshot > CAIRNFS_SNAPSHOT_DEVICE) {
    return InvalidArgument("snapshot is " + std::to_string(options.snapshot) + ", which is none of cairnfs_snapshot");
  }
  return std::unique_ptr<Saver>(new Saver(options, devices));
}

Saver::Saver(const cairnfs_saver_options& options, Devices& devices)
    : options_(options), writers_(ThreadsOf(options.writers)), devices_(devices), ring_(devices) {}

Saver::~Saver() {
  MutexLock lock(mutex_);
  AwaitEarlier();
}

void Saver::AwaitEarlier() {
  if (job_.joinable()) job_.join();
}

Status Saver::ReserveMemory(const Layout& layout) {
  CAIRNFS_RETURN_IF_ERROR(scratch_.Reserve(writers_ * kHostSpanBytes));
  if (options_.ring_bytes != 0) return ring_.Reserve(options_.ring_bytes);
  uint64_t wanted = std::min(layout.device_tensor_bytes + kHostRingBytes, UsableMemory() / 4 / RanksOfHost());
  for (;;) {
    const Status status = ring_.Reserve(std::max(wanted, kOwnRingBytesMin));
    if (status.ok() || status.error().code != ErrorCode::kExhausted || wanted <= kOwnRingBytesMin) return status;
    wanted /= 2;
  }
}

Status Saver::BeginDevices(Layout& layout, const cairnfs_save_request& request) {
  const bool compares = request.base != nullptr && fingerprints_.has_value();
  for (const auto& [number, stream] : layout.streams) {
    if (!sides_.contains(number)) {
      CAIRNFS_ASSIGN_OR_RETURN(Device * device, devices_.Get(number));
      sides_.emplace(number, std::make_unique<DeviceSide>(devices_, *device, number));
    }
    const DeviceSide::Options options{stream, compares ? &*fingerprints_ : nullptr,
                                      options_.snapshot == CAIRNFS_SNAPSHOT_DEVICE, request.needs_snapshot != 0,
                                      options_.copies_in_flight == 0 ? kCopiesInFlight : options_.copies_in_flight};
    CAIRNFS_RETURN_IF_ERROR(sides_.at(number)->Begin(layout, options));
  }
  return {};
}

// Ends what was begun on devices for a save that does not begin.
class Saver::Beginning {
 public:
  explicit Beginning(Saver& saver) : saver_(saver) {}
  ~Beginning() {
    if (has_begun_) return;
    for (const auto& [number, side] : saver_.sides_) side->Finish();
  }
  Beginning(const Beginning&) = delete;
  void HasBegun() { has_begun_ = true; }

 private:
  Saver& saver_;
  bool has_begun_ = false;
};

Result<std::shared_ptr<SaveOutcome>> Saver::Start(const cairnfs_save_request& request) {
  auto outcome = std::make_shared<SaveOutcome>();
  SaveJob::Options options{{}, std::nullopt, request.mode, writers_, options_.snapshot == CAIRNFS_SNAPSHOT_DEVICE};
  CAIRNFS_ASSIGN_OR_RETURN(options.path, AbsolutePath(request.path, "path"));
  if (request.base != nullptr) {
    CAIRNFS_ASSIGN_OR_RETURN(options.base, AbsolutePath(request.base, "base"));
  }
  if ((request.mode & ~0777U) != 0) return InvalidArgument("mode has bits beyond 0777");
  MutexLock lock(mutex_);
  AwaitEarlier();
  CAIRNFS_ASSIGN_OR_RETURN(Layout layout, MakeLayout(request, devices_));
  CAIRNFS_RETURN_IF_ERROR(ReserveMemory(layout));
  Beginning beginning(*this);
  CAIRNFS_RETURN_IF_ERROR(BeginDevices(layout, request));
  auto job = std::make_shared<SaveJob>(std::move(layout), std::move(options),
                                       SaveParts{ring_, scratch_, sides_, fingerprints_}, outcome);
  auto run = [this, job] {
    SaveJob::Ending ending = job->Run();
    if (ending.is_saved) fingerprints_ = std::move(ending.fingerprints);
  };
  auto started = StartThread("a save", std::move(run), ErrorCode::kExhausted);
  if (!started.ok()) return started.error();
  job_ = std::move(*started);
  beginning.HasBegun();
  return outcome;
}

}  // namespace cairnfs::client
