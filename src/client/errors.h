// How errors of the library become those of its C ABI. The codes of base say here:
//   kInvalidArgument _INVALID; kStale _POINTER; kNotFound, kNotDirectory, kNameTooLong, kIsDirectory _NOT_FOUND;
//   kPermission _PERMISSION; kNoSpace _NO_SPACE; kExhausted _NO_MEMORY; kRange _NO_DEVICE_MEMORY; kCorrupt _TRUNCATED;
//   kFailed _DEVICE; kUnavailable _NO_DEVICE; kBusy _TIMEOUT; all else _IO.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "cairnfs/client.h"

namespace cairnfs::client {

// The text, and the code that it returns, go to `out`, which may be null.
int32_t Report(const Error& error, cairnfs_error* out);
// CAIRNFS_OK, or the error as above.
int32_t Report(const Status& status, cairnfs_error* out);

// As ErrnoError; EFBIG, which RLIMIT_FSIZE makes, is kNoSpace, ENOMEM, EMFILE and ENFILE are kExhausted.
Error FileError(int errno_value, const std::string& what);

// kExhausted: `what` found no memory. Needs none itself.
Error NoMemory(const char* what) noexcept;
// The same error; where there is no memory for it, NoMemory.
Error CopyOf(const Error& error) noexcept;

}  // namespace cairnfs::client
