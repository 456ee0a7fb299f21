// What a daemon answers while it stops.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "control.grpc.pb.h"
#include "rpc/status.h"

namespace cairnfs::control {

// What a stop gives up, and who waits to be told. Any thread.
class StopTold {
 public:
  void NoteCaller() {
    MutexLock lock(mutex_);
    callers_++;
  }
  // Returns once all who have called for the stop say that they have been told, or the context has expired.
  void Tell(const Context& context, const Unsaved& unsaved) {
    MutexLock lock(mutex_);
    *told_.mutable_unsaved() = unsaved;
    changed_.NotifyAll();
    static_cast<void>(
        context.Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return times_told_ >= callers_; }));
  }
  // As soon as something is told; without it after a while, or EndWaits.
  StopOutcomeReply Await(const StopOutcomeRequest& request) {
    constexpr std::chrono::milliseconds kWaitMax{500};
    MutexLock lock(mutex_);
    const uint64_t ends = ends_total_;
    if (request.was_told()) {
      times_told_++;
      changed_.NotifyAll();
    }
    static_cast<void>(Context().WithTimeout(kWaitMax).Wait(
        mutex_, changed_, [this, ends]() REQUIRES_LOCK(mutex_) { return told_.has_unsaved() || ends_total_ != ends; }));
    return told_;
  }
  void EndWaits() {
    MutexLock lock(mutex_);
    ends_total_++;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  StopOutcomeReply told_ GUARDED_BY(mutex_);
  uint64_t callers_ GUARDED_BY(mutex_) = 0, times_told_ GUARDED_BY(mutex_) = 0, ends_total_ GUARDED_BY(mutex_) = 0;
};

// Of a daemon that stops.
class StopService final : public Control::Service {
 public:
  StopService(std::function<StatusReply()> report, StopTold& told, uint64_t pid)
      : report_(std::move(report)), told_(told), pid_(pid) {}

  grpc::Status StopOutcome(grpc::ServerContext*, const StopOutcomeRequest* request, StopOutcomeReply* reply) override {
    *reply = told_.Await(*request);
    reply->set_pid(pid_);
    return grpc::Status::OK;
  }
  grpc::Status Stop(grpc::ServerContext*, const StopRequest*, StopEstimate*) override { return Refusal(); }

  grpc::Status Status(grpc::ServerContext*, const StatusRequest* request, StatusReply* reply) override {
    if (request->exact() || request->metadata_owners()) return Refusal();
    *reply = report_();
    return grpc::Status::OK;
  }
  grpc::Status Wait(grpc::ServerContext*, const WaitRequest*, WaitReply*) override { return Refusal(); }
  grpc::Status Drain(grpc::ServerContext*, const StopRequest*, grpc::ServerWriter<DrainStep>*) override {
    return Refusal();
  }
  grpc::Status Unwritten(grpc::ServerContext*, const UnwrittenRequest*, UnwrittenReply*) override { return Refusal(); }
  grpc::Status Gc(grpc::ServerContext*, const GcRequest*, grpc::ServerWriter<GcProgress>*) override {
    return Refusal();
  }
  grpc::Status Check(grpc::ServerContext*, const CheckRequest*, grpc::ServerWriter<CheckStep>*) override {
    return Refusal();
  }
  grpc::Status Cluster(grpc::ServerContext*, const ClusterRequest*, ClusterReply*) override { return Refusal(); }
  grpc::Status DrainNode(grpc::ServerContext*, const DrainNodeRequest*, NodeReply*) override { return Refusal(); }
  grpc::Status RemoveNode(grpc::ServerContext*, const RemoveNodeRequest*, NodeReply*) override { return Refusal(); }
  grpc::Status ReplaceNode(grpc::ServerContext*, const ReplaceNodeRequest*, NodeReply*) override { return Refusal(); }
  grpc::Status SetStandby(grpc::ServerContext*, const SetStandbyRequest*, NodeReply*) override { return Refusal(); }
  grpc::Status Promote(grpc::ServerContext*, const PromoteRequest*, PromoteReply*) override { return Refusal(); }
  grpc::Status MakeToken(grpc::ServerContext*, const TokenRequest*, TokenReply*) override { return Refusal(); }
  grpc::Status DumpNames(grpc::ServerContext*, const DumpNamesRequest*, grpc::ServerWriter<DumpNamesPiece>*) override {
    return Refusal();
  }
  grpc::Status Holds(grpc::ServerContext*, const HoldsRequest*, HoldsReply*) override { return Refusal(); }
  grpc::Status ReleaseHold(grpc::ServerContext*, const ReleaseHoldRequest*, ReleaseHoldReply*) override {
    return Refusal();
  }
  grpc::Status PausePolicies(grpc::ServerContext*, const PausePoliciesRequest*, PausePoliciesReply*) override {
    return Refusal();
  }
  grpc::Status Remount(grpc::ServerContext*, const RemountRequest*, RemountReply*) override { return Refusal(); }
  grpc::Status SetMinReplicas(grpc::ServerContext*, const SetMinReplicasRequest*, SetMinReplicasReply*) override {
    return Refusal();
  }

 private:
  static grpc::Status Refusal() {
    return rpc::ToGrpc(MakeError(ErrorCode::kUnavailable, "the daemon is stopping, and tells its status alone"));
  }
  const std::function<StatusReply()> report_;
  StopTold& told_;
  const uint64_t pid_;
};

}  // namespace cairnfs::control
