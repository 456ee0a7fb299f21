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
  bool lazy = false;
};
struct StatusCommand {
  Target target;
  bool exact = false, metadata = false, json = false;
};
struct CheckCommand {
  Target target;
  bool rebuild_index = false, json = false;
};

int RunMount(const MountCommand& command);
int RunUmount(const UmountCommand& command);
int RunStatus(const StatusCommand& command);
int RunWait(const std::string& path, bool json);
int RunGc(const Target& target, bool json);
int RunCheck(const CheckCommand& command);

// As the text says, without looking at what lies there.
std::string Absolute(const std::string& path);
// Whether the path is this mount point; without touching it unless its text is not the mount point's: a dead daemon's
// mount cannot be asked.
bool NamesMountPoint(const std::string& path, const std::string& mount_point);
// "cairnfs: message" on stderr; the exit code that fits.
int Fail(const Error& error);
// The words that hand a mount's settings to cairnfsd; paths are made absolute.
std::vector<std::string> DaemonArguments(const MountCommand& command);

}  // namespace cairnfs::tools
