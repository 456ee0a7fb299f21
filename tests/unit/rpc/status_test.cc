#include "rpc/status.h"

#include <gtest/gtest.h>

namespace cairnfs::rpc {
namespace {

TEST(Status, EveryCodeComesBack) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::kOtherQuota); code++) {
    Error back = FromGrpc(ToGrpc(MakeError(static_cast<ErrorCode>(code), "why")));
    EXPECT_EQ(back.code, static_cast<ErrorCode>(code));
    EXPECT_EQ(back.message, "why");
  }
}

// gRPC refuses headers of more than 8 KiB, and a path alone may have 4.
TEST(Status, KeepsBothEndsOfALongMessage) {
  const std::string message = "cannot rename " + std::string(9000, 'a') + " to b: Input/output error";
  const std::string back = FromGrpc(ToGrpc(MakeError(ErrorCode::kIo, message))).message;
  EXPECT_LT(back.size(), 2500U);
  EXPECT_TRUE(back.starts_with("cannot rename aaa")) << back;
  EXPECT_TRUE(back.ends_with("a to b: Input/output error")) << back;
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
