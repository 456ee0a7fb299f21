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

// All of a file of /proc, however long it is; what could be read of it when that fails.
std::string ReadProcFile(const char* path);

// Whether a thread of that id has a SIGKILL pending. False for 0, which the kernel says of threads in other pid
// namespaces. Reads /proc.
bool IsBeingKilled(pid_t thread);

// The groups of who made the request, from /proc; to be asked before the answer. A process that cannot be seen has its
// first group alone.
fs::Credentials CredentialsOf(fuse_req_t request);
// Whether who made the request is a member, or root.
bool IsInGroup(fuse_req_t request, uint32_t gid);

// Who made the request. Its `cancelled` is true once the server stops, or the kernel interrupted the request and its
// caller has a SIGKILL pending. The kernel sends FUSE_INTERRUPT for any signal, a handled SIGALRM too, so the second
// question is asked of /proc. May be called until the request is answered, not after.
fs::Caller CallerOf(fuse_req_t request);
// The same, but a server that stops waits for the answer.
fs::Caller CallerThatStopAwaits(fuse_req_t request);

}  // namespace cairnfs::fuse
