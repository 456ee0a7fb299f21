#include "base/result.h"

#include <cerrno>
#include <cstring>

namespace cairnfs {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kAlreadyExists: return "already exists";
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kConflict: return "conflict";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kNoSpace: return "no space";
    case ErrorCode::kExhausted: return "out of descriptors or memory";
    case ErrorCode::kIo: return "input/output error";
    case ErrorCode::kFailed: return "failed earlier";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kPermission: return "permission denied";
    case ErrorCode::kNotSupported: return "not supported";
    case ErrorCode::kTooLarge: return "too large";
    case ErrorCode::kNameTooLong: return "name too long";
    case ErrorCode::kNotDirectory: return "not a directory";
    case ErrorCode::kIsDirectory: return "is a directory";
    case ErrorCode::kNotEmpty: return "not empty";
    case ErrorCode::kTooManyLinks: return "too many links";
    case ErrorCode::kNoData: return "no data";
    case ErrorCode::kRange: return "out of range";
    case ErrorCode::kInterrupted: return "interrupted";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kStale: return "stale";
    case ErrorCode::kValueTooLarge: return "value too large";
    case ErrorCode::kSealed: return "sealed";
    case ErrorCode::kQuotaExceeded: return "quota exceeded";
    case ErrorCode::kOtherQuota: return "in another quota";
  }
  return "unknown";
}

std::optional<ErrorCode> ErrorCodeOfName(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kOtherQuota); code++) {
    if (ErrorCodeName(static_cast<ErrorCode>(code)) == name) return static_cast<ErrorCode>(code);
  }
  return std::nullopt;
}

Error ErrnoError(int errno_value, std::string_view what) {
  ErrorCode code = ErrorCode::kIo;
  switch (errno_value) {
    case ENOSPC:
    case EDQUOT: code = ErrorCode::kNoSpace; break;
    case ENOENT: code = ErrorCode::kNotFound; break;
    case EEXIST: code = ErrorCode::kAlreadyExists; break;
    case EACCES:
    case EPERM:
    case EROFS: code = ErrorCode::kPermission; break;
    case EINVAL: code = ErrorCode::kInvalidArgument; break;
    case EBUSY:
    case EAGAIN: code = ErrorCode::kBusy; break;
    case ENOTDIR: code = ErrorCode::kNotDirectory; break;
    case ENAMETOOLONG: code = ErrorCode::kNameTooLong; break;
    case ENOTCONN:  // of a mount whose daemon is gone
    case ECONNABORTED: code = ErrorCode::kUnavailable; break;
    case EOPNOTSUPP:
    case ENOSYS: code = ErrorCode::kNotSupported; break;
    default: break;
  }
  return Error{code, std::string(what) + ": " + std::strerror(errno_value)};
}

}  // namespace cairnfs
