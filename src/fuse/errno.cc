#include <cerrno>

#include "fuse/server.h"

namespace cairnfs::fuse {

int ErrnoOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound: return ENOENT;
    case ErrorCode::kAlreadyExists: return EEXIST;
    case ErrorCode::kInvalidArgument: return EINVAL;
    case ErrorCode::kConflict: return EBUSY;
    case ErrorCode::kCorrupt: return EIO;
    case ErrorCode::kNoSpace: return ENOSPC;
    case ErrorCode::kExhausted:
    case ErrorCode::kIo:
    case ErrorCode::kFailed: return EIO;
    case ErrorCode::kUnavailable: return ETIMEDOUT;
    case ErrorCode::kPermission: return EPERM;
    case ErrorCode::kNotSupported: return EOPNOTSUPP;
    case ErrorCode::kTooLarge: return EFBIG;
    case ErrorCode::kNameTooLong: return ENAMETOOLONG;
    case ErrorCode::kNotDirectory: return ENOTDIR;
    case ErrorCode::kIsDirectory: return EISDIR;
    case ErrorCode::kNotEmpty: return ENOTEMPTY;
    case ErrorCode::kTooManyLinks: return EMLINK;
    case ErrorCode::kNoData: return ENODATA;
    case ErrorCode::kRange: return ERANGE;
    case ErrorCode::kInterrupted: return EINTR;
    case ErrorCode::kBusy: return EBUSY;
    case ErrorCode::kStale: return ESTALE;
    case ErrorCode::kValueTooLarge: return E2BIG;
    case ErrorCode::kSealed: return EROFS;
    case ErrorCode::kQuotaExceeded: return EDQUOT;
    case ErrorCode::kOtherQuota: return EXDEV;
  }
  return EIO;
}

}  // namespace cairnfs::fuse
