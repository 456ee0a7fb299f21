// Time since the machine started, which runs on while the process is stopped or the machine is suspended: by the steady
// clock a suspended host would take a lease that ended long ago for its own.
#pragma once

#include <time.h>

#include <chrono>

namespace cairnfs::cluster {

inline std::chrono::nanoseconds BootTime() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace cairnfs::cluster
