// Who made a request, and whether that thread is being killed.
#pragma once

#include <fuse_lowlevel.h>
#include <sys/types.h>

#include <string>
#include <string_view>

#include "fs/filesystem.h"

namespace cairnfs::fuse {

// True when the text of a /proc/TID/status shows a pending SIGKILL.
bool ShowsPendingKill(std::string_view proc_status);

// All of a file of /proc, however long it is. When that fails, as much as could be read.
std::string ReadProcFile(const char* path);

// Whether a thread of that id has a SIGKILL pending. False for 0, which the kernel says of threads in other pid
// namespaces. Reads /proc.
bool IsBeingKilled(pid_t thread);

// The caller's user and groups; the groups come from /proc, so ask before the answer. A process that cannot be seen has
// its first group alone.
fs::Credentials CredentialsOf(fuse_req_t request);
// Whether the caller is a member of the group, or root.
bool IsInGroup(fuse_req_t request, uint32_t gid);

// The caller of the request, whose context is over once the caller is being killed (fuse/kill_watch.h). REQUIRES
// (unchecked): the request is not answered yet, and this is called once for it.
fs::Caller CallerOf(fuse_req_t request);
// The same, for what a server that stops does not wait for.
fs::Caller UntilStop(fuse_req_t request, fs::Caller caller);

}  // namespace cairnfs::fuse
