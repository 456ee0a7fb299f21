// Which CairnFS mounts there are, and which one a path lies in.
#pragma once

#include <string>
#include <vector>

#include "base/mount_info.h"
#include "base/result.h"

namespace cairnfs::control {

// The CairnFS mounts of a process's mount namespace, in the order in which they were made. Errors: ReadMountInfo.
Result<std::vector<MountEntry>> ListMounts(const std::string& mountinfo = "/proc/self/mountinfo");
// The topmost mount that `path` lies in; the path itself is not touched unless no mount matches its text, because a
// dead daemon's mount cannot be asked. kNotFound says that no CairnFS is mounted there.
Result<MountEntry> FindMount(const std::string& path);
// The path as the filesystem has it, from below its root on, without a slash in front; empty: the root. It is touched
// as by FindMount. REQUIRES (unchecked): FindMount gave `mount` for it.
std::string PathInFilesystem(const MountEntry& mount, const std::string& path);

}  // namespace cairnfs::control
