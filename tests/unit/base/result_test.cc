#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cairnfs {
namespace {

TEST(ErrnoError, CodesThatCallersReactTo) {
  const std::pair<int, ErrorCode> pairs[] = {
      {ENOSPC, ErrorCode::kNoSpace},
      {EDQUOT, ErrorCode::kNoSpace},
      {ENOENT, ErrorCode::kNotFound},
      {EEXIST, ErrorCode::kAlreadyExists},
      {EACCES, ErrorCode::kPermission},
      {EPERM, ErrorCode::kPermission},
      {EROFS, ErrorCode::kPermission},
      {EINVAL, ErrorCode::kInvalidArgument},
      {EBUSY, ErrorCode::kBusy},
      {EAGAIN, ErrorCode::kBusy},
      {ENOTDIR, ErrorCode::kNotDirectory},
      {ENAMETOOLONG, ErrorCode::kNameTooLong},
      {ENOSYS, ErrorCode::kNotSupported},
      {EOPNOTSUPP, ErrorCode::kNotSupported},
      {ENOTCONN, ErrorCode::kUnavailable},
      {ECONNABORTED, ErrorCode::kUnavailable},
      {EIO, ErrorCode::kIo},
      {EMFILE, ErrorCode::kIo},
  };
  for (const auto& [number, code] : pairs) EXPECT_EQ(ErrnoError(number, "what").code, code) << number;
  EXPECT_EQ(ErrnoError(ENOENT, "open x").message, "open x: No such file or directory");
}

}  // namespace
}  // namespace cairnfs
