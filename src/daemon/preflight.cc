#include "daemon/preflight.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <latch>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/machine_limits.h"
#include "control/rank_door.h"
#include "daemon/size_text.h"
#include "io/buffer_pool.h"
#include "kv/engine.h"
#include "store/local_chunk_store.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// Buffers of each receiving thread: one to read into, and one to pack small writes into (fuse/receiver.h).
constexpr uint64_t kBuffersPerReceiver = 2;
// The session never has fewer.
constexpr uint64_t kReceiversMin = 2;
// Threads of a mount beside those that the configuration counts: RocksDB, gRPC, the disk, rounds, collector, and a
// margin.
constexpr uint64_t kOtherThreads = 40;

// Open files beside segments and tables: /dev/fuse, sockets, logs, the disk's own, and a margin.
constexpr uint64_t kOtherFiles = 64;
// More of them in a cluster: connections from and to other hosts.
constexpr uint64_t kPeerFiles = 64;

uint64_t FilesNeeded(const Config& config) {
  uint64_t needed = store::kSegmentFilesOpenMax + kv::kRocksFilesOpenMax + control::kRankConnectionsMax + kOtherFiles;
  if (config.InCluster()) needed += kPeerFiles;
  if (!config.serve_metadata.empty()) needed += kv::kRocksFilesOpenMax;
  return needed;
}

uint64_t ReceiverCount(const Config& config) { return std::max(kReceiversMin, config.receive_threads); }

struct ThreadGroup {
  const char* key;
  uint64_t configured;
  uint64_t count;
};

std::array<ThreadGroup, 4> ThreadGroups(const Config& config) {
  const uint64_t cores = std::max(2U, UsableCores());
  auto or_cores = [cores](uint64_t count) { return count != 0 ? count : cores; };
  return {{{"worker_threads", config.worker_threads, or_cores(config.worker_threads)},
           {"verify_threads", config.verify_threads, or_cores(config.verify_threads)},
           {"waiting_threads", config.waiting_threads, config.waiting_threads},
           {"receive_threads", config.receive_threads, ReceiverCount(config)}}};
}

// How many of `wanted` threads the system lets run at once.
uint64_t StartThreads(uint64_t wanted, std::string& refusal) {
  std::latch all_started(1);
  std::vector<std::jthread> threads;
  threads.reserve(wanted);
  try {
    while (threads.size() < wanted) threads.emplace_back([&all_started] { all_started.wait(); });
  } catch (const std::system_error& error) {
    refusal = error.code().message();
  }
  all_started.count_down();
  return threads.size();
}

}  // namespace

Status CheckPoolSuffices(const Config& config) {
  // Beside the reserve, the data itself must have at least as many buffers as the receivers hold.
  constexpr uint64_t kReserved = io::BufferPool::Options{}.reserved_count;
  constexpr uint64_t kPerReceiver = 2 * kBuffersPerReceiver;
  const uint64_t pool = config.pool_size != 0 ? config.pool_size : DefaultPoolSize();
  if (const uint64_t memory = UsableMemory(); pool > memory) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("pool_size = {} does not fit the {} of memory that the daemon may use; give less",
                                 FormatSizeExact(pool), FormatSize(memory)));
  }
  const uint64_t buffers = pool / io::BufferPool::kBufferBytes;
  const uint64_t needed = ReceiverCount(config) * kPerReceiver + kReserved;
  if (buffers >= needed) return {};
  const uint64_t receivers_max = (buffers - std::min(buffers, kReserved)) / kPerReceiver;
  const uint64_t pool_min = (needed * io::BufferPool::kBufferBytes + kMiB - 1) / kMiB * kMiB;
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "receive_threads = {} is too many for pool_size = {}{}: each receiving thread holds {} MiB of the pool, "
          "and as much must be left for data; use receive_threads = {} or fewer, or pool_size = \"{}\" or more",
          config.receive_threads, FormatSizeExact(config.pool_size),
          config.pool_size != 0 ? "" : fmt::format(" (here {})", FormatSize(pool)), kBuffersPerReceiver,
          std::max(kReceiversMin, receivers_max), FormatSizeExact(pool_min)));
}

Status RaiseFileLimit(const Config& config) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoError(errno, "cannot read the limit on open files");
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  const uint64_t needed = FilesNeeded(config);
  if (limit.rlim_cur >= needed) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("up to {} files are open at once, and the limit on open files is {}: raise the hard "
                               "limit to {} or more (ulimit -Hn, LimitNOFILE= of the unit)",
                               needed, limit.rlim_cur, needed));
}

uint64_t FilesToSpare(const Config& config) {
  rlimit limit{};
  const uint64_t needed = FilesNeeded(config);
  return getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur <= needed ? 0 : limit.rlim_cur - needed;
}

Status CheckThreadsCanStart(const Config& config) {
  const auto groups = ThreadGroups(config);
  const uint64_t wanted = std::accumulate(groups.begin(), groups.end(), kOtherThreads,
                                          [](uint64_t sum, const ThreadGroup& group) { return sum + group.count; });
  std::string refusal;
  const uint64_t started = StartThreads(wanted, refusal);
  if (started == wanted) return {};
  const ThreadGroup& largest = *std::max_element(
      groups.begin(), groups.end(), [](const ThreadGroup& a, const ThreadGroup& b) { return a.count < b.count; });
  return MakeError(
      ErrorCode::kIo,
      fmt::format("the mount needs {} threads, and the system lets only {} more start ({}): most of them are "
                  "asked for by {} = {}; give it a smaller number, or raise the limit on threads "
                  "(pids.max of the control group, TasksMax= of the unit, ulimit -u)",
                  wanted, started, refusal, largest.key, largest.configured));
}

Status CheckNothingIsHidden(const Config& config) {
  std::error_code error;
  const stdfs::path mount_point = stdfs::canonical(config.mount_point, error);
  if (error) return ErrnoError(error.value(), "mount point " + config.mount_point);
  struct Named {
    const char* what;
    std::string path;
  };
  const std::string log_file = config.log_file == kLogToJournal ? "" : config.log_file;
  for (const auto& [what, path] : {Named{"data directory", config.data}, Named{"log file", log_file}}) {
    // A path that cannot be looked at is refused when it is opened.
    const stdfs::path full = path.empty() ? stdfs::path() : stdfs::weakly_canonical(path, error);
    if (std::mismatch(mount_point.begin(), mount_point.end(), full.begin(), full.end()).first != mount_point.end()) {
      continue;
    }
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the {} {} lies in the mount point {}, which would hide it; give one elsewhere", what,
                                 path, config.mount_point));
  }
  return {};
}

}  // namespace cairnfs::daemon
