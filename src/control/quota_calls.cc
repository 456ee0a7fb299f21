#include "control/quota_calls.h"

#include <chrono>

#include "base/clock.h"
#include "base/printable.h"
#include "fs/quota_settings.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

constexpr std::chrono::milliseconds kTellEvery{200};
constexpr std::chrono::seconds kPathsMax{1};

}  // namespace

grpc::Status ChangeQuota(fs::FileSystem& filesystem, const Context& wanted, const QuotaRequest& request,
                         grpc::ServerWriter<QuotaStep>* writer) {
  auto told_at = Clock::Now();
  const auto tell = [&](uint64_t inodes) {
    if (wanted.Expired()) return false;
    if (Clock::Now() - told_at < kTellEvery) return true;
    told_at = Clock::Now();
    QuotaStep step;
    step.set_inodes(inodes);
    writer->Write(step);
    return true;
  };
  const InodeId directory{request.inode()};
  if (request.take_off()) {
    const Status taken = filesystem.quotas().TakeOff(wanted, directory, tell);
    return taken.ok() ? grpc::Status::OK : rpc::ToGrpc(taken.error());
  }
  fs::QuotaRequest set{.directory = directory, .may_be_below_use = request.force()};
  if (request.has_logical_bytes()) set.logical_bytes = request.logical_bytes();
  if (request.has_unique_bytes()) set.unique_bytes = request.unique_bytes();
  const Status done = filesystem.quotas().Set(wanted, set, tell);
  return done.ok() ? grpc::Status::OK : rpc::ToGrpc(done.error());
}

void AddQuotas(fs::FileSystem& filesystem, StatusReply& reply) {
  for (const fs::QuotaReport& report : filesystem.quotas().All(Context().WithTimeout(kPathsMax), kQuotasToldMax)) {
    Quota& quota = *reply.add_quotas();
    quota.set_inode(std::to_string(report.directory.value));
    quota.set_directory(Printable(report.path));
    quota.set_state(std::string(fs::NameOf(report.record.state)));
    const meta::QuotaBytes& limit = report.record.limit;
    if (limit.logical != meta::QuotaRecord::kNoLimit) quota.set_logical_limit_bytes(limit.logical);
    quota.set_logical_used_bytes(report.used.logical);
    if (limit.unique != meta::QuotaRecord::kNoLimit) quota.set_unique_limit_bytes(limit.unique);
    quota.set_unique_used_bytes(report.used.unique);
  }
}

}  // namespace cairnfs::control
