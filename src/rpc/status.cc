#include "rpc/status.h"

#include <array>
#include <utility>

namespace cairnfs::rpc {
namespace {

// Where two of our codes have the same counterpart in gRPC, that one comes back as the first when nothing tells more.
constexpr std::array<std::pair<ErrorCode, grpc::StatusCode>, 12> kCodes = {{
    {ErrorCode::kNotFound, grpc::StatusCode::NOT_FOUND},
    {ErrorCode::kAlreadyExists, grpc::StatusCode::ALREADY_EXISTS},
    {ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kCorrupt, grpc::StatusCode::DATA_LOSS},
    {ErrorCode::kNoSpace, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {ErrorCode::kFailed, grpc::StatusCode::FAILED_PRECONDITION},
    {ErrorCode::kPermission, grpc::StatusCode::PERMISSION_DENIED},
    {ErrorCode::kInterrupted, grpc::StatusCode::CANCELLED},
    {ErrorCode::kBusy, grpc::StatusCode::ABORTED},
    {ErrorCode::kUnavailable, grpc::StatusCode::UNAVAILABLE},
    {ErrorCode::kUnavailable, grpc::StatusCode::DEADLINE_EXCEEDED},
    {ErrorCode::kNotSupported, grpc::StatusCode::UNIMPLEMENTED},
}};

constexpr std::string_view kDetails = "cairnfs: ";

// A status is a header, for which gRPC takes 8 KiB at most, and a byte that is not ASCII counts as three. Paths may be
// longer.
constexpr size_t kMessageBytesMax = 2400;

std::string Shortened(const std::string& message) {
  if (message.size() <= kMessageBytesMax) return message;
  constexpr size_t kHalf = kMessageBytesMax / 2 - 4;
  return message.substr(0, kHalf) + " [...] " + message.substr(message.size() - kHalf);
}

}  // namespace

grpc::Status ToGrpc(const Error& error) {
  grpc::StatusCode grpc_code = grpc::StatusCode::INTERNAL;
  for (const auto& [code, like] : kCodes) {
    if (code != error.code) continue;
    grpc_code = like;
    break;
  }
  return {grpc_code, Shortened(error.message), std::string(kDetails).append(ErrorCodeName(error.code))};
}

Error FromGrpc(const grpc::Status& status) {
  const std::string details = status.error_details();
  if (details.starts_with(kDetails)) {
    if (auto code = ErrorCodeOfName(std::string_view(details).substr(kDetails.size()))) {
      return MakeError(*code, status.error_message());
    }
  }
  for (const auto& [code, grpc_code] : kCodes) {
    if (grpc_code == status.error_code()) return MakeError(code, status.error_message());
  }
  return MakeError(ErrorCode::kIo, status.error_message());
}

}  // namespace cairnfs::rpc
