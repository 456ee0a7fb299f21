// The mounts of this process, as /proc/self/mountinfo lists them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::fuse {

inline constexpr const char* kFilesystemType = "fuse.cairnfs";

struct MountEntry {
  std::string device;  // "MAJOR:MINOR", also the name of its bdi
  std::string mount_point;
  std::string type;
  std::string source;
  std::string options;        // "rw,nosuid,relatime": of this mount
  std::string super_options;  // of the filesystem, wherever it is mounted
};

// Lines that do not look like mountinfo are left out. The escapes \040, \011, \012 and \134 are undone.
std::vector<MountEntry> ParseMountInfo(std::string_view text);
Result<std::vector<MountEntry>> ReadMountTable();

// The uppermost mount at exactly `mount_point` (a canonical path).
std::optional<MountEntry> FindMount(const std::vector<MountEntry>& table, std::string_view mount_point);

}  // namespace cairnfs::fuse
