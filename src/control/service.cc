#include "control/service.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <chrono>
#include <deque>
#include <filesystem>
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
#include "control/rank_service.h"
#include "control/socket_uri.h"
#include "fs/maintenance.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

constexpr auto kRateWindow = std::chrono::seconds(10);
// About the count of what files need: how long a status that asks for no exact one waits for it, and how often metrics
// begin one.
constexpr auto kQuickCountWait = std::chrono::seconds(5);
constexpr auto kCountEvery = std::chrono::minutes(1);

uint64_t BytesBelow(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info;
    if (stat(entry->path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

uint64_t SecondsSince(Clock::time_point then) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(Clock::Now() - then).count());
}

}  // namespace

// Of a daemon that stops.
class StopService final : public Control::Service {
 public:
  explicit StopService(std::function<StatusReply()> report) : report_(std::move(report)) {}

  grpc::Status Status(grpc::ServerContext*, const StatusRequest* request, StatusReply* reply) override {
    if (request->exact() || request->metadata_owners()) return Refusal();
    *reply = report_();
    return grpc::Status::OK;
  }
  grpc::Status Wait(grpc::ServerContext*, const WaitRequest*, WaitReply*) override { return Refusal(); }
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
  grpc::Status Remount(grpc::ServerContext*, const RemountRequest*, RemountReply*) override { return Refusal(); }
  grpc::Status SetMinReplicas(grpc::ServerContext*, const SetMinReplicasRequest*, SetMinReplicasReply*) override {
    return Refusal();
  }

 private:
  static grpc::Status Refusal() {
    return rpc::ToGrpc(MakeError(ErrorCode::kUnavailable, "the daemon is stopping, and tells its status alone"));
  }
  const std::function<StatusReply()> report_;
};

class Service::Impl final : public Control::Service {
 public:
  Impl(Options options, fs::FileSystem& filesystem) : options_(std::move(options)), filesystem_(filesystem) {}

  cairnfs::Status Listen();
  void Shutdown();
  cairnfs::Status AnswerStatusOnly();
  StatusReply Report() const { return Report(filesystem_.maintenance().GetStatus()); }
  StatusReply Report(const fs::FsStatus& status) const;
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
    for (std::string& failure : DescribeFailures(status.failed_commits, request->path())) {
      reply->add_failures(std::move(failure));
    }
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
                      [&](ClusterControl& cluster, const Context&) { return cluster.Remove(*request); });
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
  };

  static Error Alone() {
    return MakeError(ErrorCode::kInvalidArgument,
                     "this host is alone: its configuration names no metadata that it would share with others (cairnfs "
                     "cluster init makes a cluster, cairnfs cluster join joins one)");
  }
  void SampleRates(const Context& context);
  Result<std::unique_ptr<grpc::Server>> Serve(Control::Service& service) const;

  const Options options_;
  fs::FileSystem& filesystem_;
  const Clock::time_point started_ = Clock::Now();
  CallWatch calls_;
  StopService stop_service_{[this] { return Report(); }};
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
    return MakeError(ErrorCode::kIo, "cannot listen on the control socket " + options_.socket_path);
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

void Service::Impl::SampleRates(const Context& context) {
  while (!context.IsStopped()) {
    fs::FsTraffic traffic = filesystem_.maintenance().GetTraffic();
    Clock::time_point now = Clock::Now();
    {
      MutexLock lock(mutex_);
      samples_.push_back({now, traffic.write_bytes_total, traffic.read_bytes_total});
      while (samples_.front().when + kRateWindow < now) samples_.pop_front();
    }
    static_cast<void>(context.Sleep(std::chrono::seconds(1)));
  }
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
  MutexLock lock(mutex_);
  if (!samples_.empty()) {
    const Sample& first = samples_.front();
    double seconds = std::max(0.5, std::chrono::duration<double>(Clock::Now() - first.when).count());
    Activity& activity = *reply.mutable_activity();
    activity.set_write_bytes_per_second(static_cast<double>(status.write_bytes_total - first.written) / seconds);
    activity.set_read_bytes_per_second(static_cast<double>(status.read_bytes_total - first.read) / seconds);
  }
  return reply;
}

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() { Shutdown(); }
void Service::Shutdown() { impl_->Shutdown(); }
Status Service::AnswerStatusOnly() { return impl_->AnswerStatusOnly(); }
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
