// A remount, as the command line and the daemon tell one another of it.
#pragma once

#include <string>
#include <vector>

namespace cairnfs::control {

// The words of -o, in their order, and the configuration that is read before them (empty: none); paths in them are
// taken from `directory`.
struct RemountCall {
  std::vector<std::string> options;
  std::string config;
  std::string directory;
};
// What it means for the kernel.
struct RemountReport {
  bool read_only = false;
};

}  // namespace cairnfs::control
