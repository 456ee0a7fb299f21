#include "control/mount_table.h"

#include <algorithm>
#include <filesystem>

namespace cairnfs::control {
namespace {

bool LiesIn(const std::string& path, const std::string& directory) {
  if (directory == "/") return true;
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

std::optional<MountEntry> Innermost(const std::vector<MountEntry>& mounts, const std::string& path) {
  std::optional<MountEntry> best;
  for (const MountEntry& mount : mounts) {
    if (!LiesIn(path, mount.mount_point)) continue;
    if (!best || mount.mount_point.size() >= best->mount_point.size()) best = mount;  // a later one lies on top
  }
  return best;
}

std::string AbsoluteText(const std::string& path) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

}  // namespace

Result<std::vector<MountEntry>> ListMounts(const std::string& mountinfo) {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<MountEntry> mounts, ReadMountInfo(mountinfo));
  std::erase_if(mounts, [](const MountEntry& mount) { return mount.type != kMountType; });
  return mounts;
}

Result<MountEntry> FindMount(const std::string& path) {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<MountEntry> mounts, ListMounts());
  if (auto found = Innermost(mounts, AbsoluteText(path))) return *found;
  std::error_code error;
  std::string canonical = std::filesystem::canonical(path, error).string();
  if (!error) {
    if (auto found = Innermost(mounts, canonical)) return *found;
  }
  return MakeError(ErrorCode::kNotFound, "no CairnFS is mounted at " + path);
}

std::string PathInFilesystem(const MountEntry& mount, const std::string& path) {
  std::string absolute = AbsoluteText(path);
  if (!LiesIn(absolute, mount.mount_point)) {
    std::error_code error;
    absolute = std::filesystem::canonical(path, error).string();
    if (error || !LiesIn(absolute, mount.mount_point)) absolute = mount.mount_point;
  }
  const std::string below = mount.mount_point == "/" ? absolute : absolute.substr(mount.mount_point.size());
  const std::string whole = (mount.root == "/" ? "" : mount.root) + below;
  return whole.substr(std::min(whole.find_first_not_of('/'), whole.size()));
}

}  // namespace cairnfs::control
