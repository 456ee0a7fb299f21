#include "control/service.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "control.grpc.pb.h"
#include "control/await.h"
#include "control/call_watch.h"
#include "control/commit_failures.h"
#include "control/convert.h"
#include "control/directory_size.h"
#include "control/drain.h"
#include "control/quota_calls.h"
#include "control/rank_service.h"
#include "control/socket_uri.h"
#include "control/stop_service.h"
#include "fs/maintenance.h"
#include "fs/policies.h"
#include "fs/tickets.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

constexpr auto kRateWindow = std::chrono::seconds(10);
// About the count of what files need: how long a status that asks for no exact one waits for it, and how often metrics
// begin one.
constexpr auto kQuickCountWait = std::chrono::seconds(5);
constexpr auto kCountEvery = std::chrono::minutes(1);
constexpr std::chrono::seconds kStopDeadlineMin{1};
constexpr std::chrono::hours kStopDeadlineMax{24};
constexpr std::chrono::seconds kPoliciesPause{30}, kPoliciesPatience{10};

Result<std::chrono::milliseconds> DeadlineOf(const StopRequest& request) {
  const std::chrono::milliseconds deadline(std::min<uint64_t>(request.deadline_ms(), INT32_MAX));
  if (deadline >= kStopDeadlineMin && deadline <= kStopDeadlineMax) return deadline;
  return InvalidArgument("a deadline must lie between 1s and 24h");
}

uint64_t SecondsSince(Clock::time_point then) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(Clock::Now() - then).count());
}

}  // namespace

class Service::Impl final : public Control::Service {
 public:
  Impl(Options options, fs::FileSystem& filesystem) : options_(std::move(options)), filesystem_(filesystem) {}

  cairnfs::Status Listen();
  void Shutdown();
  cairnfs::Status AnswerStatusOnly();
  StatusReply Report() const { return Report(filesystem_.maintenance().GetStatus()); }
  StatusReply Report(const fs::FsStatus& status) const;
  StopEstimate EstimateStop() const;
  uint64_t UnwrittenBytes(const fs::FsTraffic& traffic) const;
  void TellUnsaved(const Context& context, const Unsaved& unsaved) { told_.Tell(context, unsaved); }
  bool CountsQuickly() const;
  void CountNowAndThen() const;

  grpc::Status Status(grpc::ServerContext* context, const StatusRequest* request, StatusReply* reply) override {
    const CallWatch::Call running(calls_, *context);
    if (request->exact() || CountsQuickly()) {
      auto count = [this](fs::Done<fs::LiveCount> done) { filesystem_.maintenance().CountLive(std::move(done)); };
      // A collection that has begun may have to end first.
      const Context& wanted = running.wanted();
      auto counted = Await<fs::LiveCount>(count, request->exact() ? wanted : wanted.WithTimeout(kQuickCountWait));
      if (!counted.ok() && request->exact()) return rpc::ToGrpc(counted.error().WithContext("cannot count"));
    }
    const fs::FsStatus status = filesystem_.maintenance().GetStatus();
    *reply = Report(status);
    AddFailures(filesystem_.maintenance().GetRefusedCommits(running.wanted()), request->path(), *reply);
    if (request->metadata_owners()) {
      auto owners = filesystem_.maintenance().GetMetadataOwners(running.wanted());
      if (!owners.ok()) return rpc::ToGrpc(owners.error());
      for (const fs::MetadataOwner& owner : *owners) ToMessage(owner, *reply->add_metadata_owners());
    }
    return grpc::Status::OK;
  }

  grpc::Status Wait(grpc::ServerContext* context, const WaitRequest* request, WaitReply*) override {
    const CallWatch::Call running(calls_, *context);
    auto waited = WaitFor(filesystem_, *request, running.wanted());
    return waited.ok() ? grpc::Status::OK : rpc::ToGrpc(waited.error().WithContext(CannotMakeDurable(*request)));
  }

  grpc::Status Stop(grpc::ServerContext*, const StopRequest* request, StopEstimate* reply) override {
    if (!options_.stop) return rpc::ToGrpc(MakeError(ErrorCode::kNotSupported, "this daemon is not stopped so"));
    const auto deadline = DeadlineOf(*request);
    if (!deadline.ok()) return rpc::ToGrpc(deadline.error());
    auto begun = options_.stop(*deadline);
    if (!begun.ok()) return rpc::ToGrpc(begun.error());
    told_.NoteCaller();
    *reply = *std::move(begun);
    return grpc::Status::OK;
  }

  grpc::Status Drain(grpc::ServerContext* context, const StopRequest* request,
                     grpc::ServerWriter<DrainStep>* writer) override {
    const auto deadline = DeadlineOf(*request);
    if (!deadline.ok()) return rpc::ToGrpc(deadline.error());
    const CallWatch::Call running(calls_, *context);
    const DrainCall call{.maintenance = filesystem_.maintenance(),
                         .wanted = running.wanted(),
                         .deadline = *deadline,
                         .estimate = EstimateStop(),
                         .log = options_.drain_log};
    const auto drained = RunDrain(call, [&](const DrainStep& step) { writer->Write(step); });
    return drained.ok() ? grpc::Status::OK : rpc::ToGrpc(drained.error());
  }

  grpc::Status Unwritten(grpc::ServerContext*, const UnwrittenRequest*, UnwrittenReply* reply) override {
    reply->set_bytes(UnwrittenBytes(filesystem_.maintenance().GetTraffic()));
    MutexLock lock(mutex_);
    reply->set_bytes_per_second(DurableRate());
    return grpc::Status::OK;
  }

  grpc::Status StopOutcome(grpc::ServerContext*, const StopOutcomeRequest* request, StopOutcomeReply* reply) override {
    *reply = told_.Await(*request);
    reply->set_pid(options_.daemon.pid());
    return grpc::Status::OK;
  }

  grpc::Status Gc(grpc::ServerContext* context, const GcRequest* request,
                  grpc::ServerWriter<GcProgress>* writer) override {
    if (request->after_restore()) {
      if (const cairnfs::Status allowed = filesystem_.maintenance().AllowCollections(); !allowed.ok()) {
        return rpc::ToGrpc(allowed.error());
      }
    }
    enum class Is { kRunning, kDone };
    auto send = [&](const fs::CollectionStatus& status, Is state) {
      GcProgress progress;
      ToMessage(status, progress);
      progress.set_running(state == Is::kRunning);
      writer->Write(progress);
    };
    auto collect = [this](fs::Done<fs::CollectionStatus> done) { filesystem_.maintenance().Collect(std::move(done)); };
    auto tell = [&] { send(filesystem_.maintenance().GetCollection(), Is::kRunning); };
    const CallWatch::Call running(calls_, *context);
    auto result = Await<fs::CollectionStatus>(collect, running.wanted(), tell);
    if (!result.ok()) return rpc::ToGrpc(result.error());
    send(*result, Is::kDone);
    return grpc::Status::OK;
  }

  grpc::Status Check(grpc::ServerContext* context, const CheckRequest*,
                     grpc::ServerWriter<CheckStep>* writer) override {
    const CallWatch::Call running(calls_, *context);  // nobody waits for a check that goes on
    auto tell = [&] {
      CheckStep step;
      ToMessage(filesystem_.maintenance().GetCheckProgress(), *step.mutable_progress());
      writer->Write(step);
    };
    auto check = [&](fs::Done<fs::CheckReport> done) {
      filesystem_.maintenance().Check(running.wanted(), std::move(done));
    };
    auto report = Await<fs::CheckReport>(check, running.wanted(), tell);
    if (!report.ok()) return rpc::ToGrpc(report.error());
    CheckStep last;
    ToMessage(*report, *last.mutable_reply());
    writer->Write(last);
    return grpc::Status::OK;
  }

  grpc::Status Cluster(grpc::ServerContext* context, const ClusterRequest*, ClusterReply* reply) override {
    return AskCluster(*context, reply,
                      [](ClusterControl& cluster, const Context& wanted) { return cluster.Report(wanted); });
  }

  grpc::Status DrainNode(grpc::ServerContext* context, const DrainNodeRequest* request, NodeReply* reply) override {
    return AskCluster(*context, reply,
                      [&](ClusterControl& cluster, const Context& wanted) { return cluster.Drain(wanted, *request); });
  }

  grpc::Status RemoveNode(grpc::ServerContext* context, const RemoveNodeRequest* request, NodeReply* reply) override {
    return AskCluster(*context, reply,
                      [&](ClusterControl& cluster, const Context& wanted) { return cluster.Remove(wanted, *request); });
  }

  grpc::Status ReplaceNode(grpc::ServerContext* context, const ReplaceNodeRequest* request, NodeReply* reply) override {
    return AskCluster(*context, reply, [&](ClusterControl& cluster, const Context& wanted) {
      return cluster.Replace(wanted, *request);
    });
  }

  grpc::Status SetStandby(grpc::ServerContext* context, const SetStandbyRequest* request, NodeReply* reply) override {
    return AskCluster(*context, reply, [&](ClusterControl& cluster, const Context& wanted) {
      return cluster.SetStandby(wanted, *request);
    });
  }

  grpc::Status Promote(grpc::ServerContext* context, const PromoteRequest* request, PromoteReply* reply) override {
    return AskCluster(*context, reply, [&](ClusterControl& cluster, const Context& wanted) {
      return cluster.Promote(wanted, *request);
    });
  }

  grpc::Status MakeToken(grpc::ServerContext*, const TokenRequest* request, TokenReply* reply) override {
    constexpr std::chrono::hours kLifeMax{24};
    if (options_.cluster == nullptr) return rpc::ToGrpc(Alone());
    const std::chrono::seconds life(std::min<uint64_t>(request->life_seconds(), UINT32_MAX));
    if (life < std::chrono::seconds(1) || life > kLifeMax) {
      return rpc::ToGrpc(InvalidArgument("the life of a token must lie between 1s and 24h"));
    }
    auto made = options_.cluster->MakeToken(life);
    if (!made.ok()) return rpc::ToGrpc(made.error());
    *reply = *std::move(made);
    return grpc::Status::OK;
  }

  grpc::Status Remount(grpc::ServerContext* context, const RemountRequest* request, RemountReply* reply) override {
    const RemountCall call{
        {request->options().begin(), request->options().end()}, request->config(), request->directory()};
    auto looked = options_.remount->Look(call);
    if (!looked.ok()) return rpc::ToGrpc(looked.error());
    reply->set_read_only(looked->read_only);
    if (request->only_look()) return grpc::Status::OK;
    const CallWatch::Call running(calls_, *context);
    auto done = options_.remount->Remount(running.wanted(), call);
    return done.ok() ? grpc::Status::OK : rpc::ToGrpc(done.error());
  }

  grpc::Status SetMinReplicas(grpc::ServerContext* context, const SetMinReplicasRequest* request,
                              SetMinReplicasReply* reply) override {
    return AskCluster(*context, reply, [&](ClusterControl& cluster, const Context& wanted) {
      return cluster.SetMinReplicas(wanted, request->min_replicas());
    });
  }

  grpc::Status DumpNames(grpc::ServerContext* context, const DumpNamesRequest* request,
                         grpc::ServerWriter<DumpNamesPiece>* writer) override {
    if (!options_.dump_names) return rpc::ToGrpc(MakeError(ErrorCode::kNotSupported, "names cannot be dumped here"));
    const CallWatch::Call running(calls_, *context);
    if (options_.cluster == nullptr) {
      auto sync = [this](fs::Done<void> done) { filesystem_.maintenance().SyncNames(std::move(done)); };
      const auto synced = Await<void>(sync, running.wanted());
      if (!synced.ok()) return rpc::ToGrpc(synced.error().WithContext("cannot make durable what is to be dumped"));
    }
    DumpNamesPiece piece;
    auto send = [&](std::string_view bytes) -> cairnfs::Status {
      piece.set_bytes(bytes.data(), bytes.size());
      if (writer->Write(piece)) return {};
      return MakeError(ErrorCode::kInterrupted, "whoever asked for the dump is gone");
    };
    const std::chrono::seconds hold(std::min<uint64_t>(request->hold_seconds(), UINT32_MAX));
    const auto dumped = options_.dump_names(running.wanted(), hold, send);
    if (!dumped.ok()) return rpc::ToGrpc(dumped.error());
    if (dumped->id() == 0) return grpc::Status::OK;
    piece.Clear();
    *piece.mutable_hold() = *dumped;
    writer->Write(piece);
    return grpc::Status::OK;
  }

  grpc::Status Holds(grpc::ServerContext* context, const HoldsRequest*, HoldsReply* reply) override {
    return AskCluster(*context, reply,
                      [](ClusterControl& cluster, const Context& wanted) { return cluster.Holds(wanted); });
  }

  grpc::Status ReleaseHold(grpc::ServerContext* context, const ReleaseHoldRequest* request,
                           ReleaseHoldReply*) override {
    if (options_.cluster == nullptr) return rpc::ToGrpc(Alone());
    const CallWatch::Call running(calls_, *context);
    const auto released = options_.cluster->ReleaseHold(running.wanted(), request->id());
    return released.ok() ? grpc::Status::OK : rpc::ToGrpc(released.error());
  }

  grpc::Status SetQuota(grpc::ServerContext* context, const QuotaRequest* request,
                        grpc::ServerWriter<QuotaStep>* writer) override {
    return ChangeQuota(filesystem_, CallWatch::Call(calls_, *context).wanted(), *request, writer);
  }

  grpc::Status PausePolicies(grpc::ServerContext*, const PausePoliciesRequest*, PausePoliciesReply*) override {
    const auto until = Clock::Now() + kPoliciesPatience;
    filesystem_.policies().Pause(kPoliciesPause, kPoliciesPatience);
    filesystem_.tickets().Pause(kPoliciesPause, until - Clock::Now());
    return grpc::Status::OK;
  }

 private:
  // What this host of a cluster answers; `wanted` ends when the caller is gone.
  template <typename Reply, typename Ask>
  grpc::Status AskCluster(grpc::ServerContext& context, Reply* reply, Ask ask) {
    if (options_.cluster == nullptr) return rpc::ToGrpc(Alone());
    const CallWatch::Call running(calls_, context);
    Result<Reply> answer = ask(*options_.cluster, running.wanted());
    if (!answer.ok()) return rpc::ToGrpc(answer.error());
    *reply = *std::move(answer);
    return grpc::Status::OK;
  }

  struct Sample {
    Clock::time_point when;
    uint64_t written, read;
    uint64_t unwritten;  // UnwrittenBytes, at this moment
  };

  static Error Alone() {
    return MakeError(ErrorCode::kInvalidArgument,
                     "this host is alone: its configuration names no metadata that it would share with others (cairnfs "
                     "cluster init makes a cluster, cairnfs cluster join joins one)");
  }
  void SampleRates(const Context& context);
  double DurableRate() const REQUIRES_LOCK(mutex_);
  Result<std::unique_ptr<grpc::Server>> Serve(Control::Service& service) const;

  const Options options_;
  fs::FileSystem& filesystem_;
  const Clock::time_point started_ = Clock::Now();
  CallWatch calls_;
  StopTold told_;
  StopService stop_service_{[this] { return Report(); }, told_, options_.daemon.pid()};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RankService> ranks_;

  mutable Mutex mutex_;
  std::deque<Sample> samples_ GUARDED_BY(mutex_);  // one a second, for kRateWindow
  std::jthread sampler_;
};

Result<std::unique_ptr<grpc::Server>> Service::Impl::Serve(Control::Service& service) const {
  grpc::ServerBuilder builder;
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddListeningPort(SocketUri(options_.socket_path), grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  // The socket must never be reachable by others, not even between bind and a chmod.
  mode_t mask = umask(0177);
  auto server = builder.BuildAndStart();
  umask(mask);
  if (server == nullptr) {
    struct stat info;
    const bool is_other = lstat(options_.socket_path.c_str(), &info) == 0 && !S_ISSOCK(info.st_mode);
    return MakeError(ErrorCode::kIo, "cannot listen on the control socket " + options_.socket_path +
                                         (is_other ? ": what is there is no socket; remove it" : ""));
  }
  return server;
}

cairnfs::Status Service::Impl::Listen() {
  CAIRNFS_ASSIGN_OR_RETURN(server_, Serve(*this));
  CAIRNFS_ASSIGN_OR_RETURN(ranks_, RankService::Start({.control_socket = options_.socket_path,
                                                       .commits_max = options_.ranks_max,
                                                       .connection_idle_max = options_.rank_idle_max},
                                                      {*options_.gate, filesystem_, calls_}));
  sampler_ = std::jthread([this](std::stop_token stop) { SampleRates(Context(std::move(stop))); });
  return {};
}

void Service::Impl::Shutdown() {
  if (server_ == nullptr) return;
  calls_.Stop();
  told_.EndWaits();
  ranks_.reset();
  server_->Shutdown(Clock::LibraryDeadline(std::chrono::seconds(5)));
  server_->Wait();
  server_.reset();
  sampler_ = {};
}

cairnfs::Status Service::Impl::AnswerStatusOnly() {
  Shutdown();
  CAIRNFS_ASSIGN_OR_RETURN(server_, Serve(stop_service_));
  return {};
}

// Bytes on their way to the disk and to other nodes, which are written at once.
uint64_t Service::Impl::UnwrittenBytes(const fs::FsTraffic& traffic) const {
  const uint64_t lacks_copies = options_.cluster == nullptr ? 0 : options_.cluster->Activity().unacknowledged_bytes();
  return std::max(traffic.unwritten_bytes, lacks_copies);
}

void Service::Impl::SampleRates(const Context& context) {
  while (!context.IsStopped()) {
    const fs::FsTraffic traffic = filesystem_.maintenance().GetTraffic();
    const uint64_t unwritten = UnwrittenBytes(traffic);
    Clock::time_point now = Clock::Now();
    {
      MutexLock lock(mutex_);
      samples_.push_back({now, traffic.write_bytes_total, traffic.read_bytes_total, unwritten});
      while (samples_.front().when + kRateWindow < now) samples_.pop_front();
    }
    static_cast<void>(context.Sleep(std::chrono::seconds(1)));
  }
}

// Only of the seconds in which something was on its way: in others nothing was tried.
double Service::Impl::DurableRate() const {
  double bytes = 0, seconds = 0;
  for (size_t i = 1; i < samples_.size(); ++i) {
    const Sample &before = samples_[i - 1], &now = samples_[i];
    if (before.unwritten == 0 && now.unwritten == 0) continue;
    seconds += std::chrono::duration<double>(now.when - before.when).count();
    bytes += static_cast<double>(now.written - before.written) + static_cast<double>(before.unwritten) -
             static_cast<double>(now.unwritten);
  }
  return seconds > 0 ? std::max(0.0, bytes / seconds) : 0;
}

StopEstimate Service::Impl::EstimateStop() const {
  StopEstimate estimate;
  // Of counters alone: a stuck disk may hold the locks of inodes.
  const fs::FsTraffic traffic = filesystem_.maintenance().GetTraffic();
  uint64_t bytes = traffic.unsaved_bytes;
  if (options_.cluster != nullptr) bytes += options_.cluster->Activity().unacknowledged_bytes();
  const uint64_t unwritten = std::min(bytes, UnwrittenBytes(traffic));  // the rest lies on the disk, unpublished
  estimate.set_bytes(bytes);
  estimate.set_pid(options_.daemon.pid());
  MutexLock lock(mutex_);
  const double rate = DurableRate();
  estimate.set_bytes_per_second(rate);
  if (bytes == 0) {
    estimate.set_seconds(0);
  } else if (rate >= 1) {
    estimate.set_seconds(static_cast<uint64_t>(std::ceil(std::min(static_cast<double>(unwritten) / rate, 1e9))));
  }
  return estimate;
}

// Counts now and then, for readers that only look at the last count.
void Service::Impl::CountNowAndThen() const {
  const auto last = filesystem_.maintenance().GetStatus().live;
  if (last && Clock::Now() - last->at < kCountEvery) return;
  if (CountsQuickly()) filesystem_.maintenance().CountLive([](const Result<fs::LiveCount>&) {});
}

// Whether a count takes no longer than a status may.
bool Service::Impl::CountsQuickly() const {
  constexpr uint64_t kRecordsMax = 100'000;
  if (options_.cluster != nullptr) return false;
  const fs::FsStatus status = filesystem_.maintenance().GetStatus();
  return !status.collecting && status.store.chunk_count + status.inode_count <= kRecordsMax;
}

StatusReply Service::Impl::Report(const fs::FsStatus& status) const {
  StatusReply reply = options_.daemon;
  ToMessage(status, reply);
  reply.set_uptime_seconds(SecondsSince(started_));
  Space& space = *reply.mutable_space();
  if (status.live) space.mutable_live()->set_counted_seconds_ago(SecondsSince(status.live->at));
  space.set_metadata_bytes(BytesBelow(reply.data() + "/metadata"));
  space.set_on_disk_bytes(space.on_disk_bytes() + space.metadata_bytes());
  if (auto known = filesystem_.maintenance().GetSpace(); known.ok()) space.set_available_bytes(known->available_bytes);
  if (options_.cluster != nullptr) *reply.mutable_cluster() = options_.cluster->Activity();
  AddQuotas(filesystem_, reply);
  for (const fs::RunReport& run : filesystem_.maintenance().GetRuns()) ToMessage(run, *reply.add_runs());
  MutexLock lock(mutex_);
  if (!samples_.empty()) {
    const Sample& first = samples_.front();
    double seconds = std::max(0.5, std::chrono::duration<double>(Clock::Now() - first.when).count());
    Activity& activity = *reply.mutable_activity();
    activity.set_write_bytes_per_second(static_cast<double>(status.write_bytes_total - first.written) / seconds);
    activity.set_read_bytes_per_second(static_cast<double>(status.read_bytes_total - first.read) / seconds);
    activity.set_durable_bytes_per_second(DurableRate());
  }
  return reply;
}

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() { Shutdown(); }
void Service::Shutdown() { impl_->Shutdown(); }
Status Service::AnswerStatusOnly() { return impl_->AnswerStatusOnly(); }
StopEstimate Service::EstimateStop() const { return impl_->EstimateStop(); }
void Service::TellUnsaved(const Context& context, const Unsaved& unsaved) { impl_->TellUnsaved(context, unsaved); }
StatusReply Service::Report() const {
  impl_->CountNowAndThen();
  return impl_->Report();
}

Result<std::unique_ptr<Service>> Service::Start(Options options, fs::FileSystem& filesystem) {
  auto impl = std::make_unique<Impl>(std::move(options), filesystem);
  CAIRNFS_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<Service>(new Service(std::move(impl)));
}

}  // namespace cairnfs::control
