// Checks before anything is made or mounted: do the configuration and the machine fit each other?
#pragma once

#include <cstdint>

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// kInvalidArgument when the pool is larger than the memory that the daemon may use.
// kInvalidArgument, naming both keys and what would be right, when the receiving threads alone would take so much of
// the pool that no data could pass: every write, and the stop too, would then wait for ever.
Status CheckPoolSuffices(const Config& config);

// Raises the limit on open files as far as the system lets it. kInvalidArgument, naming the limit and what is needed,
// when that is too few for this configuration: the store would fail in the middle of a write.
Status RaiseFileLimit(const Config& config);

// How many more files the limit lets the daemon open than this configuration needs.
uint64_t FilesToSpare(const Config& config);

// Starts as many threads as a mount with this configuration will have, and ends them again. kIo, naming the key that
// asks for most of them and the limits that there are, when the system refuses.
Status CheckThreadsCanStart(const Config& config);

// kInvalidArgument when the data directory or the log file is the mount point or lies below it: the mount would hide
// files that are made there.
Status CheckNothingIsHidden(const Config& config);

}  // namespace cairnfs::daemon
