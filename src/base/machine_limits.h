// What of the machine the process may use.
#pragma once

#include <cstdint>
#include <string>

namespace cairnfs {

// The least of the machine's memory and of the limits of the process's control group and of those above it (cgroup v1
// and v2), in bytes; UINT64_MAX when none can be read. `root` is put before /proc and /sys: tests give a folder.
uint64_t UsableMemory(const std::string& root = "");

// How many threads can run at once: the cores that the process may run on, or as many as the time comes to, rounded up,
// that its control group and those above it may have of them; 1 at least.
unsigned UsableCores(const std::string& root = "");

// How many other processes of the program cairnfsd there are that are root's, or of this process's own user: another
// user could start any number, under any name.
unsigned DaemonsBeside(const std::string& root = "");

}  // namespace cairnfs
