// What root's daemon gives up as it starts, so that a fault in it gives nobody all of root's rights.
#pragma once

#include "base/result.h"

namespace cairnfs::daemon {

// Keeps the capabilities that CapabilityBoundingSet= of the units names and gives up all others for good, of programs
// that it starts too, and lets none of these gain any (no_new_privs). Does nothing where another user runs it: that
// one has none, and mounts by fusermount3, which gains them. Begins the program anew with `argv`, once, where there is
// something to give up: each thread has its own capabilities, and malloc's runs before main. kIo.
Status DropPrivileges(char** argv);

}  // namespace cairnfs::daemon
