// Root's daemon gives up rights as it starts, so that a fault in it gives nobody all of root's rights.
#pragma once

#include "base/result.h"

namespace cairnfs::daemon {

// Whether the daemon is to make its mount point immutable, which takes CAP_LINUX_IMMUTABLE.
enum class Guarding { kNo, kYes };

// Keeps the capabilities that CapabilityBoundingSet= of the units names, and gives up all others for good, also for
// programs that it starts. None of these can gain any (no_new_privs). Does nothing when another user runs it: that one
// has no capabilities, and mounts by fusermount3, which gains them. When there is something to give up it begins the
// program anew with `argv`, once, because each thread has its own capabilities, and malloc's thread runs before main.
// kIo.
Status DropPrivileges(char** argv, Guarding guarding);

}  // namespace cairnfs::daemon
