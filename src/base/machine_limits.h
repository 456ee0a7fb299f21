// How much of the machine the process may use.
#pragma once

#include <cstdint>
#include <string>

namespace cairnfs {

// The least of the machine's memory and of the limits of the process's control group and of those above it (cgroup v1
// and v2), in bytes; UINT64_MAX when none can be read. `root` is put before /proc and /sys: tests give a folder.
uint64_t UsableMemory(const std::string& root = "");

// How many threads can run at once, 1 at least: the number of cores that the process may run on, or fewer where its
// control group and those above it have less than that in time (rounded up).
unsigned UsableCores(const std::string& root = "");

// How many other processes run the program cairnfsd as root or as this process's user. Those of other users do not
// count: they could start any number, under any name.
unsigned DaemonsBeside(const std::string& root = "");

}  // namespace cairnfs
