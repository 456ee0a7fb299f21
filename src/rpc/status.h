// Errors as gRPC statuses and back.
#pragma once

#include <grpcpp/grpcpp.h>

#include "base/result.h"

namespace cairnfs::rpc {

// The code travels in the status' details beside gRPC's nearest one, so that FromGrpc gives it back exactly.
grpc::Status ToGrpc(const Error& error);
// When gRPC itself made the status, or a server that is not CairnFS, DEADLINE_EXCEEDED and UNAVAILABLE are
// kUnavailable, and codes without a counterpart are kIo.
Error FromGrpc(const grpc::Status& status);

}  // namespace cairnfs::rpc
