// Changes a mount's state in the kernel: whether it may be written to, and the flags of mount(2). The kernel's own flag
// of the filesystem keeps writers out, and only the kernel knows whether there are any.
#include <sys/mount.h>

#include <cerrno>

#include "base/comma_list.h"
#include "base/mount_info.h"
#include "fuse/device.h"
#include "fuse/mount_point.h"
#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

// Of words as the kernel writes them those that are flags.
Result<unsigned long> FlagsOf(const std::string& options, unsigned long flags) {
  std::vector<std::string> words;
  for (std::string_view word : SplitAtCommas(options)) {
    if (IsMountFlag(word)) words.emplace_back(word);
  }
  CAIRNFS_ASSIGN_OR_RETURN(const KernelMountFlags parsed, ParseKernelOptions(words, flags));
  return parsed.flags;
}

Error WhyNotRemounted(int error, const std::string& mount_point) {
  if (error == EPERM || error == EACCES) {
    return MakeError(ErrorCode::kPermission, "only root may remount " + mount_point +
                                                 " read-only, read-write or with other words for the kernel");
  }
  if (error != EBUSY) return ErrnoError(error, "remount " + mount_point);
  const std::string who = ProcessesUsing(mount_point, UseOfMount::kWriting);
  const std::string what = who.empty() ? "files are open or mapped for writing, or deleted and still open"
                                       : "files are open for writing by process " + who;
  return MakeError(ErrorCode::kBusy, mount_point + " is busy: " + what + "; end what uses them first");
}

}  // namespace

Result<MountState> StateOfMount(const std::string& mount_point) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string canonical, CanonicalMountPoint(mount_point));
  CAIRNFS_ASSIGN_OR_RETURN(const auto mounts, ReadMountInfo());
  const auto entry = TopmostAt(mounts, canonical);
  if (!entry || entry->type != kMountType) {
    return MakeError(ErrorCode::kNotFound, canonical + " is not the mount point of a cairnfs");
  }
  CAIRNFS_ASSIGN_OR_RETURN(const unsigned long of_filesystem, FlagsOf(entry->super_options, 0));
  MountState state;
  state.read_only = (of_filesystem & MS_RDONLY) != 0;
  CAIRNFS_ASSIGN_OR_RETURN(state.flags, FlagsOf(entry->options, of_filesystem & ~(MS_RDONLY | 0UL)));
  return state;
}

Result<MountState> StateAfter(const MountState& now, const MountChange& change) {
  CAIRNFS_ASSIGN_OR_RETURN(KernelMountFlags parsed, ParseKernelOptions(change.words, now.flags));
  parsed.flags = change.read_only ? parsed.flags | MS_RDONLY : parsed.flags & ~(MS_RDONLY | 0UL);
  return MountState{change.read_only, parsed.flags};
}

Status RemountAt(const std::string& mount_point, const MountState& state) {
  CAIRNFS_ASSIGN_OR_RETURN(const MountState now, StateOfMount(mount_point));
  if (now == state) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const std::string canonical, CanonicalMountPoint(mount_point));
  if (mount(nullptr, canonical.c_str(), nullptr, MS_REMOUNT | state.flags, nullptr) == 0) return {};
  return WhyNotRemounted(errno, canonical);
}

}  // namespace cairnfs::fuse
