// What the control service reports, as plain structs: the command line and the metrics know no protobuf.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fs/filesystem.h"

namespace cairnfs::control {

// Constant for the life of a daemon.
struct DaemonInfo {
  std::string version, data, mount_point, uuid, log;
  uint64_t pid = 0;
};

struct StatusReport {
  DaemonInfo daemon;
  uint64_t uptime_seconds = 0;
  fs::FsStatus fs{};
  uint64_t available_bytes = 0;
  uint64_t metadata_bytes = 0;
  double write_bytes_per_second = 0, read_bytes_per_second = 0;

  uint64_t OnDiskBytes() const {
    return fs.store.segment_bytes - std::min(fs.store.segment_bytes, fs.store.free_segment_bytes) + metadata_bytes;
  }
};

using GcReport = fs::CollectionStatus;

using CheckReport = fs::CheckReport;

}  // namespace cairnfs::control
