// Whether the caller of a request is being killed.
#pragma once

#include <fuse_lowlevel.h>

#include <functional>
#include <string_view>

#include "base/types.h"

namespace cairnfs::fuse {

// True when the text of a /proc/TID/status shows a pending SIGKILL.
bool ShowsPendingKill(std::string_view proc_status);

// A function for fs::Caller::cancelled: true once the server stops, or the kernel interrupted the request and its
// caller has a SIGKILL pending. The kernel sends FUSE_INTERRUPT for any signal, a handled SIGALRM too, so the second
// question is asked of /proc. May be called until the request is answered, not after.
std::function<bool()> CancelledFunction(fuse_req_t request);

}  // namespace cairnfs::fuse
