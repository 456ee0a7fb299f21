// Looks at a mount point before it is mounted on, and takes mounts away.
#pragma once

#include <string>

#include "base/result.h"
#include "fuse/server.h"

namespace cairnfs::fuse {

// An absolute path without symbolic links. Works for the root of a mount whose daemon is dead.
Result<std::string> CanonicalMountPoint(const std::string& path);

// Checks that `path` can be mounted on and returns its canonical form. Takes away a dead cairnfs mount that is in the
// way, with a warning. Errors as Server::Mount lists them.
Result<std::string> PrepareMountPoint(const std::string& path);

// Makes the empty directory immutable, so that nobody, root neither, writes into it while nothing is mounted there: a
// trainer that goes on after an unmount gets EPERM. It stays so after the mount. kNotEmpty, with nothing changed;
// kPermission; kNotSupported: its file system knows no such flag. REQUIRES: PrepareMountPoint has returned `canonical`.
Status GuardMountPoint(const std::string& canonical);

// "PID (name)" of a few other processes that use the mount: with a working directory, root or open file below
// `mount_point`, or (kWriting) with a file there that is open for writing. Best effort: an unprivileged process sees
// only processes of its own user.
enum class UseOfMount { kAny, kWriting };
std::string ProcessesUsing(const std::string& mount_point, UseOfMount use);

// Unmounts what is at `canonical`, by umount2 or, when that is not permitted, by fusermount3. Tries so many times, a
// tenth of a second apart, where something keeps it busy. kBusy names processes that do, as far as they can be seen.
Status UnmountAt(const std::string& canonical, Unmounting how, int tries = 1);

}  // namespace cairnfs::fuse
