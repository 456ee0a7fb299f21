// `cairnfs check` without a daemon: opens the data directory itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/config.h"
#include "fs/filesystem.h"

namespace cairnfs::daemon {

struct OfflineCheckOptions {
  Config config;
  bool rebuild_index = false;
  std::function<void(const fs::CheckProgress&)> on_progress = {};  // some times a second; may be empty
};
struct OfflineCheckResult {
  fs::CheckReport report;
  std::optional<uint64_t> chunks_found;  // by rebuild_index
  std::string last_end;                  // what LOCK tells of it; empty: the directory was closed cleanly
};

// kBusy names the process that uses the directory. A segment that is missing or cannot be identified, and blocks of
// metadata that fail their checksum, are problems in the summary, and the check goes on with the rest. It is an error
// when the directory cannot be opened at all, or when the metadata is damaged and the index is to be rebuilt in it.
// LOCK is left as it was found: a check does not deal with what an unclean end lost, and the next mount is to tell of
// it.
Result<OfflineCheckResult> CheckOffline(const OfflineCheckOptions& options);

}  // namespace cairnfs::daemon
