#include "locate.h"

#include <filesystem>

#include "control/mount_table.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"

namespace cairnfs::tools {

Result<Location> Locate(const Target& target) {
  if (!target.data.empty()) {
    std::error_code error;
    std::string data = std::filesystem::canonical(target.data, error).string();
    if (error) return ErrnoError(error.value(), "no data directory " + target.data);
    return Location{data, {}};
  }
  if (!target.path.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(control::MountEntry mount, control::FindMount(target.path));
    return Location{mount.data, mount.mount_point, control::PathInFilesystem(mount, target.path)};
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<control::MountEntry> mounts, control::ListMounts());
  if (mounts.empty()) {
    return MakeError(ErrorCode::kNotFound, "no CairnFS is mounted here; mount one with: cairnfs mount DIR");
  }
  if (mounts.size() > 1) {
    std::string message = "several CairnFS mounts are here; name one of them:";
    for (const control::MountEntry& mount : mounts) message += " " + mount.mount_point;
    return MakeError(ErrorCode::kInvalidArgument, message);
  }
  return Location{mounts.front().data, mounts.front().mount_point};
}

Result<control::Client> Connect(const Location& location) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string socket, daemon::ControlSocketPath(location.data));
  return control::Client(socket);
}

}  // namespace cairnfs::tools
