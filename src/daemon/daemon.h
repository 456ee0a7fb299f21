// The daemon's life: open, mount, serve, drain.
#pragma once

#include "daemon/config.h"

namespace cairnfs::daemon {

struct RunOptions {
  Config config;
  int ready_fd = -1;        // told once the mount is ready, or why it is not
  bool background = false;  // stderr leads nowhere: log to DATA/cairnfs.log unless configured otherwise
};

// Serves until the mount is gone: by SIGTERM, SIGINT, Stop of the control service, or umount. The exit code: 0 after a
// stop that left everything durable. Reports errors itself (log, readiness pipe, stderr).
int Run(const RunOptions& options);

}  // namespace cairnfs::daemon
