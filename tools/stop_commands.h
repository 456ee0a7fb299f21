// Commands for a host that is about to be taken away: what can become durable in a given time does, and what cannot is
// named.
#pragma once

#include <chrono>
#include <string>

#include "commands.h"
#include "control/mount_table.h"

namespace cairnfs::tools {

// kInvalidArgument: it is no duration, or not between 1 s and 24 h.
Result<std::chrono::milliseconds> ParseDeadline(const std::string& text);
// `umount --deadline`. The exit code.
int UmountWithin(const UmountCommand& command, const MountEntry& mount, std::chrono::milliseconds deadline);

struct DrainCommand {
  Target target;
  std::string deadline;
  bool json = false;
};
// `drain`. The exit code.
int RunDrain(const DrainCommand& command);

}  // namespace cairnfs::tools
