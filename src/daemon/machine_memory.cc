#include "daemon/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "base/types.h"

namespace cairnfs::daemon {
namespace {

// UINT64_MAX for a file that is not there or holds no number: "max", where nothing is limited.
uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number;
  return file >> number ? number : UINT64_MAX;
}

// The least number in the files `name` of a group and of those above it. The root counts too: in a container it is
// often the container's own group, while /proc names the group by its path on the host.
uint64_t LeastUpwards(const std::string& hierarchy, std::string group, const std::string& name) {
  uint64_t least = UINT64_MAX;
  while (group.ends_with('/')) group.pop_back();
  for (;;) {
    least = std::min(least, NumberIn(hierarchy + group + "/" + name));
    if (group.empty()) return least;
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

bool HoldsWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
  return false;
}

// By the lines ID:CONTROLLERS:PATH of /proc/self/cgroup; without controllers it is the one of cgroup v2.
uint64_t ControlGroupLimit(const std::string& root) {
  uint64_t least = UINT64_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, LeastUpwards(root + "/sys/fs/cgroup", group, "memory.max"));
    } else if (HoldsWord(controllers, "memory")) {
      least = std::min(least, LeastUpwards(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

uint64_t MachineMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string name; file >> name; std::getline(file, name)) {
    if (uint64_t kibibytes; name == "MemTotal:" && file >> kibibytes) return kibibytes * kKiB;
  }
  return UINT64_MAX;
}

}  // namespace

uint64_t UsableMemory(const std::string& root) { return std::min(MachineMemory(root), ControlGroupLimit(root)); }

}  // namespace cairnfs::daemon
