// Changes options of a mount while it is in use: `cairnfs mount DIR -o remount,...`, and mount(8) through
// mount.cairnfs.
#pragma once

#include "base/result.h"
#include "commands.h"

namespace cairnfs::tools {

// Whether one of the options is `remount`.
bool IsRemount(const MountCommand& command);
// kUnavailable: no CairnFS is mounted there. kInvalidArgument: an option that is wrong or cannot change. kBusy: files
// are open for writing. kPermission.
Status Remount(const MountCommand& command);

}  // namespace cairnfs::tools
