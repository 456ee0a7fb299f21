#include "locate.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "daemon/data_directory.h"

namespace cairnfs::tools {
namespace {

// When a mount is not found, no daemon is there to be asked. That has a code, and so an exit code, of its own.
Error NobodyToAsk(Error error) {
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kUnavailable;
  return error;
}

}  // namespace

std::string Location::PathInMount(const std::string& path_in_filesystem) const {
  const std::string whole = "/" + path_in_filesystem, above = root == "/" ? "" : root;
  if (whole != above && !whole.starts_with(above + "/")) return path_in_filesystem;
  return mount_point + whole.substr(above.size());
}

Result<MountEntry> LocateMount(const std::string& path) {
  auto mount = control::FindMount(path);
  if (!mount.ok()) return NobodyToAsk(mount.error());
  return mount;
}

std::string DeviceText(dev_t device) { return fmt::format("{}:{}", major(device), minor(device)); }

bool IsInReadOnlyMount(int file) {
  struct statvfs info = {};
  return fstatvfs(file, &info) == 0 && (info.f_flag & ST_RDONLY) != 0;
}

Result<Location> Locate(const Target& target) {
  if (!target.data.empty()) {
    std::error_code error;
    std::string data = std::filesystem::canonical(target.data, error).string();
    if (error) return NobodyToAsk(ErrnoError(error.value(), "no data directory " + target.data));
    return Location{data, {}};
  }
  if (!target.path.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(MountEntry mount, LocateMount(target.path));
    return Location{mount.source, mount.mount_point, control::PathInFilesystem(mount, target.path), mount.root};
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<MountEntry> mounts, control::ListMounts());
  if (mounts.empty()) {
    return MakeError(ErrorCode::kUnavailable, "no CairnFS is mounted here; mount one with: cairnfs mount DIR");
  }
  if (mounts.size() > 1) {
    std::string message = "several CairnFS mounts are here; name one of them:";
    for (const MountEntry& mount : mounts) message += " " + mount.mount_point;
    return MakeError(ErrorCode::kInvalidArgument, message);
  }
  return Location{mounts.front().source, mounts.front().mount_point, {}, mounts.front().root};
}

Result<control::Client> Connect(const Location& location) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string socket, daemon::ControlSocketPath(location.data));
  return control::Client(socket);
}

Result<LocatedDaemon> LocateDaemon(const Target& target) {
  CAIRNFS_ASSIGN_OR_RETURN(Location location, Locate(target));
  CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect(location));
  return LocatedDaemon{std::move(location), std::move(client)};
}

}  // namespace cairnfs::tools
