// Exit codes of cairnfs, cairnfsd and the Errors they come from. The table stands in docs/operating.md.
#pragma once

#include "base/result.h"

namespace cairnfs::daemon {

enum ExitCode : int {
  kExitDone = 0,
  kExitFailed = 1,      // the operation failed; the message says why
  kExitUsage = 2,       // command line or configuration
  kExitNoDaemon = 3,    // no CairnFS there, no daemon that answers, or no /dev/fuse
  kExitProblems = 4,    // check found problems
  kExitBusy = 5,        // in use: data directory, mount point, files under the mount
  kExitPermission = 6,  // not allowed
  kExitCorrupt = 7,     // the data directory is damaged, or of a newer format
};

inline int ExitCodeOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument: return kExitUsage;
    case ErrorCode::kUnavailable: return kExitNoDaemon;
    case ErrorCode::kBusy: return kExitBusy;
    case ErrorCode::kPermission: return kExitPermission;
    case ErrorCode::kCorrupt:
    case ErrorCode::kNotSupported: return kExitCorrupt;
    default: return kExitFailed;
  }
}

}  // namespace cairnfs::daemon
