// Which daemon a command means: by a path in its mount, or by its data directory.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"
#include "control/client.h"
#include "control/mount_table.h"

namespace cairnfs::tools {

// What the user named; at most one of them.
struct Target {
  std::string path;  // the mount point or any path in the mount
  std::string data;
};

struct Location {
  std::string data;         // absolute
  std::string mount_point;  // empty when only the data directory is known
  std::string path = {};    // the named path, as the filesystem has it (control::PathInFilesystem); empty: all of it
  std::string root = "/";   // MountEntry::root
  // Where the mount has what lies at this path of the filesystem, which is returned as it is where the mount lacks it.
  std::string PathInMount(const std::string& path_in_filesystem) const;
};

// The mount that `path` lies in. kUnavailable: no CairnFS is mounted there, so nobody can be asked.
Result<MountEntry> LocateMount(const std::string& path);

// As MountEntry::device has it.
std::string DeviceText(dev_t device);
// Whether the file lies in a mount that is read-only. `file`: a descriptor, also one of O_PATH.
bool IsInReadOnlyMount(int file);

// With an empty target: the one mount there is. kUnavailable: there is none, or no such data directory.
// kInvalidArgument: several mounts might be meant.
Result<Location> Locate(const Target& target);

// A client of the daemon that serves the data directory. The first call shows whether there is one.
Result<control::Client> Connect(const Location& location);

// Both, for a command that does nothing but ask the daemon.
struct LocatedDaemon {
  Location location;
  control::Client client;
};
Result<LocatedDaemon> LocateDaemon(const Target& target);

}  // namespace cairnfs::tools
