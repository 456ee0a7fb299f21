// Lets a request that changes names wait for the disk without holding up the thread that received it.
#pragma once

#include <fuse_lowlevel.h>

#include <utility>

#include "fs/filesystem.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {

// Calls `act(filesystem)` once the change is let in (fs::FileSystem::WhenAdmitted), perhaps on another thread and after
// the handler has returned: `act` owns what it needs of the request's message. Replies when it is refused.
template <typename Act>
void WhenAdmitted(fuse_req_t request, fs::NameChange change, Act act) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  filesystem.WhenAdmitted(change, [request, &filesystem, act = std::move(act)](const Status& admitted) {
    if (!admitted.ok()) return ReplyError(request, admitted.error());
    act(filesystem);
  });
}

}  // namespace cairnfs::fuse
