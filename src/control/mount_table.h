// Which CairnFS mounts there are, and which one a path lies in. A mount's source is its data directory.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::control {

struct MountEntry {
  std::string mount_point;
  std::string data;
  uint64_t device_minor = 0;
  std::string root;  // the part of the filesystem that is mounted there: "/", or a directory (mount --bind)
};

// The CairnFS mounts in the text of a mountinfo file, in its order. Lines that do not parse are passed over.
std::vector<MountEntry> ParseMountInfo(std::string_view text);
// Those of this process's mount namespace.
Result<std::vector<MountEntry>> ListMounts();
// The topmost mount that `path` lies in. The path itself is not touched unless no mount matches its text, because the
// mount of a dead daemon cannot be asked. kNotFound: no CairnFS is mounted there.
Result<MountEntry> FindMount(const std::string& path);
// The path as the filesystem has it, from below its root on, without a slash in front; empty: the root. It is touched
// as by FindMount. REQUIRES: FindMount gave `mount` for it.
std::string PathInFilesystem(const MountEntry& mount, const std::string& path);

}  // namespace cairnfs::control
