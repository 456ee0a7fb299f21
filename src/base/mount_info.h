// What is mounted, as /proc/PID/mountinfo lists it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs {

inline constexpr const char* kMountType = "fuse.cairnfs";  // of our mounts

struct MountEntry {
  std::string device;       // "MAJOR:MINOR", also the name of its bdi
  std::string root;         // what of the filesystem is mounted there: "/", or a directory of it (mount --bind)
  std::string mount_point;  // as the process of that list sees it
  std::string type;
  std::string source;         // of our mounts: the data directory
  std::string options;        // "rw,nosuid,relatime": of this mount
  std::string super_options;  // of the filesystem, wherever it is mounted
};

// In the order of the list: what was mounted later at the same place lies on top. Lines that do not look like mountinfo
// are left out. The escapes \040, \011, \012 and \134 are undone.
std::vector<MountEntry> ParseMountInfo(std::string_view text);
// kIo: it cannot be read.
Result<std::vector<MountEntry>> ReadMountInfo(const std::string& path = "/proc/self/mountinfo");

// The uppermost mount at exactly `mount_point` (a canonical path).
std::optional<MountEntry> TopmostAt(const std::vector<MountEntry>& mounts, std::string_view mount_point);

}  // namespace cairnfs
