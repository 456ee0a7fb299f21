// The commands of `cairnfs`. Each prints its result to stdout, its errors to stderr, and returns the exit code.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "locate.h"

namespace cairnfs::tools {

struct MountCommand {
  std::string mount_point, data, config;
  std::vector<std::string> options;
  bool foreground = false;
};
struct UmountCommand {
  std::string mount_point;
  bool lazy = false, unguard = false;
  std::string deadline;  // empty: as long as it takes
  bool json = false;     // with a deadline
};
struct StatusCommand {
  Target target;
  bool exact = false, metadata = false, json = false;
};
struct CheckCommand {
  Target target;
  bool rebuild_index = false, json = false;
};

struct GcCommand {
  Target target;
  bool after_restore = false, json = false;
};

int RunMount(const MountCommand& command);
int RunUmount(const UmountCommand& command);
int RunStatus(const StatusCommand& command);
int RunWait(const std::string& named, bool json);
int RunGc(const GcCommand& command);
int RunCheck(const CheckCommand& command);

// Makes the path absolute by its text alone, without looking at the file.
std::string Absolute(const std::string& path);
std::string WithoutSlashes(std::string path);  // at its end; the root keeps its own
// Whether the path is this mount point. Touches the path only when its text is not that of the mount point, because the
// mount of a dead daemon cannot be asked.
bool NamesMountPoint(const std::string& path, const std::string& mount_point);
// Prints "cairnfs: message" to stderr, and returns the exit code that fits.
int Fail(const Error& error);
// The words that hand a mount's settings to cairnfsd; paths are made absolute.
std::vector<std::string> DaemonArguments(const MountCommand& command);

}  // namespace cairnfs::tools
