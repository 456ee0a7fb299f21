#include "mount_holders.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "control/mount_table.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

std::vector<uint64_t> ProcessIds() {
  std::vector<uint64_t> pids;
  std::error_code error;
  for (stdfs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    uint64_t pid = 0;
    auto [rest, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code == std::errc{} && rest == name.data() + name.size()) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

}  // namespace

std::vector<MountHolder> FindMountHolders(const MountEntry& gone) {
  std::vector<MountHolder> holders;
  std::set<std::string> seen;
  for (uint64_t pid : ProcessIds()) {
    const std::string process = "/proc/" + std::to_string(pid);
    std::error_code hidden;
    const std::string mount_namespace = stdfs::read_symlink(process + "/ns/mnt", hidden).string();
    if (!hidden && !seen.insert(mount_namespace).second) continue;
    const auto mounts = control::ListMounts(process + "/mountinfo");
    if (!mounts.ok()) continue;
    for (const MountEntry& mount : *mounts) {
      // Its device number may be that of another filesystem by now.
      const bool is_same = mount.device == gone.device && mount.type == gone.type && mount.source == gone.source;
      if (!is_same) continue;
      MountHolder holder{pid, {}, mount.mount_point};
      std::getline(std::ifstream(process + "/comm") >> std::ws, holder.name);
      holders.push_back(std::move(holder));
      break;
    }
  }
  return holders;
}

}  // namespace cairnfs::tools
