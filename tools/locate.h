// Which daemon a command means: by a path in its mount, or by its data directory.
#pragma once

#include <string>

#include "base/result.h"
#include "control/client.h"

namespace cairnfs::tools {

// What the user named; at most one of them.
struct Target {
  std::string path;  // the mount point or any path in the mount
  std::string data;
};

struct Location {
  std::string data;         // absolute
  std::string mount_point;  // empty when only the data directory is known
  std::string path = {};    // that was named, as the filesystem has it (control::PathInFilesystem); empty: all of it
};

// With an empty target: the one mount there is, else the default data directory. kNotFound, or kInvalidArgument when
// several mounts might be meant.
Result<Location> Locate(const Target& target);

// A client of the daemon that serves `data`. kUnavailable when none holds the directory.
Result<control::Client> Connect(const Location& location);

}  // namespace cairnfs::tools
