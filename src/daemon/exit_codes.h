// Exit codes of cairnfs, cairnfsd and the Errors they come from. Their numbers and meanings stand in the public header;
// the table stands in docs/operating.md.
#pragma once

#include "base/result.h"
#include "cairnfs/cairnfs.h"

namespace cairnfs::daemon {

enum ExitCode : int {
  kExitDone = CAIRNFS_EXIT_DONE,
  kExitFailed = CAIRNFS_EXIT_FAILED,
  kExitUsage = CAIRNFS_EXIT_USAGE,
  kExitNoDaemon = CAIRNFS_EXIT_NO_DAEMON,
  kExitProblems = CAIRNFS_EXIT_PROBLEMS,
  kExitBusy = CAIRNFS_EXIT_BUSY,
  kExitPermission = CAIRNFS_EXIT_PERMISSION,
  kExitCorrupt = CAIRNFS_EXIT_CORRUPT,
  kExitLost = CAIRNFS_EXIT_LOST,
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

// For an error about something that the configuration or the command line of a start names (the mount point, the data
// directory, the log file). When it is not there, or is something else, they are wrong, and starting again does not
// help.
inline Error AsWrongConfiguration(Error error) {
  switch (error.code) {
    case ErrorCode::kNotFound:
    case ErrorCode::kNotDirectory:
    case ErrorCode::kIsDirectory:
    case ErrorCode::kNotEmpty:
    case ErrorCode::kNameTooLong: error.code = ErrorCode::kInvalidArgument; break;
    default: break;
  }
  return error;
}

}  // namespace cairnfs::daemon
