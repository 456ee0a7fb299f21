// Finds the processes that keep a mount alive that is unmounted here, by copies in other mount namespaces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mount_info.h"

namespace cairnfs::tools {

struct MountHolder {
  uint64_t pid = 0;  // the lowest of its namespace
  std::string name;
  std::string mount_point;  // as that process sees it
};

// One process of each mount namespace that holds the filesystem of this mount, which is unmounted here, in the order of
// their pids. Best effort: without root, processes of others may not be seen.
std::vector<MountHolder> FindMountHolders(const MountEntry& gone);

}  // namespace cairnfs::tools
