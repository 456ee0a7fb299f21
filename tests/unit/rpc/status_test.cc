#include "rpc/status.h"

#include <gtest/gtest.h>

namespace cairnfs::rpc {
namespace {

TEST(Status, EveryCodeComesBack) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kValueTooLarge); code++) {
    Error back = FromGrpc(ToGrpc(MakeError(static_cast<ErrorCode>(code), "why")));
    EXPECT_EQ(back.code, static_cast<ErrorCode>(code));
    EXPECT_EQ(back.message, "why");
  }
}

TEST(Status, OfOtherServersHasTheNearestCode) {
  EXPECT_EQ(FromGrpc({grpc::StatusCode::NOT_FOUND, "gone"}).code, ErrorCode::kNotFound);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::DEADLINE_EXCEEDED, "late"}).code, ErrorCode::kUnavailable);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::ABORTED, "again"}).code, ErrorCode::kBusy);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::INTERNAL, "?"}).code, ErrorCode::kIo);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::ABORTED, "again", "cairnfs: no such code"}).code, ErrorCode::kBusy);
}

}  // namespace
}  // namespace cairnfs::rpc
