#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <vector>

#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

struct Row {
  ErrorCode code;
  int expected;
};

// Every code there is, in the order of result.h.
const std::vector<Row> kTable = {
    {ErrorCode::kNotFound, ENOENT},
    {ErrorCode::kAlreadyExists, EEXIST},
    {ErrorCode::kInvalidArgument, EINVAL},
    {ErrorCode::kConflict, EBUSY},
    {ErrorCode::kCorrupt, EIO},
    {ErrorCode::kNoSpace, ENOSPC},
    {ErrorCode::kExhausted, EIO},
    {ErrorCode::kIo, EIO},
    {ErrorCode::kFailed, EIO},
    {ErrorCode::kUnavailable, ETIMEDOUT},
    {ErrorCode::kPermission, EPERM},
    {ErrorCode::kNotSupported, EOPNOTSUPP},
    {ErrorCode::kTooLarge, EFBIG},
    {ErrorCode::kNameTooLong, ENAMETOOLONG},
    {ErrorCode::kNotDirectory, ENOTDIR},
    {ErrorCode::kIsDirectory, EISDIR},
    {ErrorCode::kNotEmpty, ENOTEMPTY},
    {ErrorCode::kTooManyLinks, EMLINK},
    {ErrorCode::kNoData, ENODATA},
    {ErrorCode::kRange, ERANGE},
    {ErrorCode::kInterrupted, EINTR},
    {ErrorCode::kBusy, EBUSY},
    {ErrorCode::kStale, ESTALE},
    {ErrorCode::kValueTooLarge, E2BIG},
    {ErrorCode::kSealed, EROFS},
    {ErrorCode::kQuotaExceeded, EDQUOT},
    {ErrorCode::kOtherQuota, EXDEV},
};

TEST(ErrnoTest, EveryCodeHasItsErrno) {
  for (const Row& row : kTable) {
    EXPECT_EQ(ErrnoOf(MakeError(row.code, "x")), row.expected) << ErrorCodeName(row.code);
  }
}

TEST(ErrnoTest, TheTableIsComplete) {
  std::set<ErrorCode> seen;
  for (const Row& row : kTable) seen.insert(row.code);
  const auto last = static_cast<int>(ErrorCode::kOtherQuota);
  EXPECT_EQ(seen.size(), static_cast<size_t>(last) + 1);
}

}  // namespace
}  // namespace cairnfs::fuse
