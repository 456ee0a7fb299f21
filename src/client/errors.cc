#include "client/errors.h"

#include <cerrno>
#include <cstdio>
#include <new>

namespace cairnfs::client {
namespace {

struct AbiError {
  int32_t code;
  int32_t system_errno;
};

AbiError ToAbi(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return {CAIRNFS_ERROR_INVALID, EINVAL};
    case ErrorCode::kStale: return {CAIRNFS_ERROR_POINTER, EFAULT};
    case ErrorCode::kNotFound: return {CAIRNFS_ERROR_NOT_FOUND, ENOENT};
    case ErrorCode::kNotDirectory: return {CAIRNFS_ERROR_NOT_FOUND, ENOTDIR};
    case ErrorCode::kIsDirectory: return {CAIRNFS_ERROR_IO, EISDIR};
    case ErrorCode::kNameTooLong: return {CAIRNFS_ERROR_IO, ENAMETOOLONG};
    case ErrorCode::kPermission: return {CAIRNFS_ERROR_PERMISSION, EACCES};
    case ErrorCode::kNoSpace: return {CAIRNFS_ERROR_NO_SPACE, ENOSPC};
    case ErrorCode::kExhausted: return {CAIRNFS_ERROR_NO_MEMORY, ENOMEM};
    case ErrorCode::kRange: return {CAIRNFS_ERROR_NO_DEVICE_MEMORY, ENOMEM};
    case ErrorCode::kCorrupt: return {CAIRNFS_ERROR_TRUNCATED, 0};
    case ErrorCode::kFailed: return {CAIRNFS_ERROR_DEVICE, 0};
    case ErrorCode::kUnavailable: return {CAIRNFS_ERROR_NO_DEVICE, ENODEV};
    case ErrorCode::kBusy: return {CAIRNFS_ERROR_TIMEOUT, ETIMEDOUT};
    default: return {CAIRNFS_ERROR_IO, EIO};
  }
}

}  // namespace

int32_t Report(const Error& error, cairnfs_error* out) {
  const AbiError abi = ToAbi(error.code);
  if (out != nullptr) {
    out->code = abi.code;
    out->system_errno = abi.system_errno;
    std::snprintf(out->text, sizeof out->text, "%s", error.message.c_str());
  }
  return abi.code;
}

int32_t Report(const Status& status, cairnfs_error* out) {
  return status.ok() ? CAIRNFS_OK : Report(status.error(), out);
}

Error FileError(int errno_value, const std::string& what) {
  Error error = ErrnoError(errno_value, what);
  switch (errno_value) {
    case EFBIG: error.code = ErrorCode::kNoSpace; break;
    case EISDIR: error.code = ErrorCode::kIsDirectory; break;
    case ENOMEM:
    case EMFILE:
    case ENFILE: error.code = ErrorCode::kExhausted; break;
    default: break;
  }
  return error;
}

Error NoMemory(const char* what) noexcept {
  try {
    return MakeError(ErrorCode::kExhausted, std::string(what) + ": no memory is left");
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kExhausted, "no memory");  // short enough to lie in the string itself
  }
}

Error CopyOf(const Error& error) noexcept {
  try {
    return error;
  } catch (const std::bad_alloc&) {
    return NoMemory("");
  }
}

}  // namespace cairnfs::client
