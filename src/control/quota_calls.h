// What the control service does about quotas.
#pragma once

#include <grpcpp/grpcpp.h>

#include "base/context.h"
#include "control.pb.h"
#include "fs/filesystem.h"

namespace cairnfs::control {

// `wanted` ends when the caller is gone; what was begun then is gone on with by the same call.
grpc::Status ChangeQuota(fs::FileSystem& filesystem, const Context& wanted, const QuotaRequest& request,
                         grpc::ServerWriter<QuotaStep>* writer);
// The quotas that there are, kQuotasToldMax at most.
constexpr size_t kQuotasToldMax = 1000;
void AddQuotas(fs::FileSystem& filesystem, StatusReply& reply);

}  // namespace cairnfs::control
