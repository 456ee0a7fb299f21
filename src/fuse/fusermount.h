// The set-user-id helper that mounts and unmounts for unprivileged users.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "fuse/server.h"

namespace cairnfs::fuse {

// Mounts on `mount_point` and returns the descriptor of /dev/fuse, which the caller owns. kPermission: the message is
// the helper's, or says that it is not installed.
Result<int> FusermountMount(const std::string& mount_point, const std::vector<std::string>& options);
// Unmounts. kPermission as above. kBusy: the mount is in use.
Status FusermountUnmount(const std::string& mount_point, Unmounting how);

// True when /etc/fuse.conf lets unprivileged users say allow_other.
bool UserMayAllowOther();

}  // namespace cairnfs::fuse
