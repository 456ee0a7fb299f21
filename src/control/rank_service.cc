#include "control/rank_service.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "control.grpc.pb.h"
#include "control/await.h"
#include "control/convert.h"
#include "control/rank_door.h"
#include "control/required_files.h"
#include "control/socket_uri.h"
#include "control/user_shares.h"
#include "fs/names.h"
#include "fs/tickets.h"
#include "fs/trash.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

constexpr unsigned kWaitsMax = 96;  // beside those of root, of all users together
// Threads beside those of calls that wait. They tell one call too many of the limit, which gRPC's own answer does not
// name.
constexpr int kRankThreadsSpare = 64;
// A rank makes one call, and a request is a few paths. What a connection has not sent whole takes memory.
constexpr int kRankCallsOfConnectionMax = 4;
constexpr int kRankMessageBytesMax = 64 * 1024;
constexpr auto kRankShutdownGrace = std::chrono::seconds(5);

// The calls that every user may make; there are no others.
class RankCalls final : public Control::Service {
 public:
  RankCalls(const RankService::Parts& parts, unsigned commits_max)
      : at_(parts), commits_max_(commits_max), commits_(commits_max) {}
  void SetDoor(RankDoor* door) {
    door_ = door;
    door_.notify_all();
  }
  void WaitForDoor() { door_.wait(nullptr); }

  grpc::Status Commit(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<CommitReply, CommitRequest>* stream) override {
    const auto caller = CallerOf(*context);
    if (!caller.ok()) return rpc::ToGrpc(caller.error());
    const Place place(commits_, caller->uid);
    if (!place.is_taken) {
      return rpc::ToGrpc(
          MakeError(ErrorCode::kBusy, fmt::format("no more than {} ranks of a user on a host can commit at the same "
                                                  "time, and fewer while other users' ranks do",
                                                  UserShares::MostOfOne(commits_max_))));
    }
    CommitRequest request;
    if (!stream->Read(&request) || !request.has_arrival()) {
      return rpc::ToGrpc(MakeError(ErrorCode::kInvalidArgument, "a commit begins with an arrival"));
    }
    const GateCall call = FromMessage(request.arrival());
    // A user who could not rename the directory has no say in when others do.
    const CallWatch::Call running(at_.calls, *context);
    auto allowed = at_.filesystem.names().CheckMayRename(running.wanted(), *caller, call.directory, call.final_parent);
    if (!allowed.ok()) return rpc::ToGrpc(allowed.error());
    auto has_final_name = [&] { return HasFinalName(call, running.wanted()); };
    // The caller is the one that renames: with its own rights, and through the kernel, which keeps names in memory.
    auto rename = [&]() -> cairnfs::Status {
      // Another rank may have been at it before and died: then there is nothing left to do.
      CAIRNFS_ASSIGN_OR_RETURN(const bool was_renamed, has_final_name());
      if (was_renamed) return {};
      const auto before = at_.filesystem.names().LastFailedCommit(call.directory);
      CommitRequest outcome;
      if (!stream->Write(CommitReply()) || !stream->Read(&outcome) || !outcome.has_outcome()) {
        return MakeError(ErrorCode::kInterrupted, "the process that renamed is gone");
      }
      if (outcome.outcome().error().empty()) return {};
      const auto is_renamed = has_final_name();  // by a rank that was taken for dead, or its answer was lost
      if (is_renamed.ok() && *is_renamed) return {};
      if (!is_renamed.ok() && IsLater(is_renamed.error().code)) return is_renamed.error();
      // rename(2) has told its caller no more than a number.
      const auto failure = at_.filesystem.names().LastFailedCommit(call.directory);
      const bool is_new = failure && !(before && before->at == failure->at);
      return MakeError(ErrorCode::kFailed,
                       outcome.outcome().error() + (is_new ? " (" + failure->JoinCauses() + ")" : ""));
    };
    auto check_required = [&] { return CheckRequired(call, running.wanted()); };
    auto committed = at_.gate.Commit(call, {.rename = rename,
                                            .has_final_name = has_final_name,
                                            .wanted = running.wanted(),
                                            .serving = at_.calls.serving(),
                                            .check_required = check_required});
    return committed.ok() ? grpc::Status::OK : rpc::ToGrpc(committed.error());
  }

  grpc::Status Wait(grpc::ServerContext* context, const WaitRequest* request, WaitReply*) override {
    const auto caller = CallerOf(*context);
    if (!caller.ok()) return rpc::ToGrpc(caller.error());
    const Place place(waits_, caller->uid);
    if (!place.is_taken) {
      return rpc::ToGrpc(
          MakeError(ErrorCode::kBusy, fmt::format("no more than {} calls of cairnfs wait of a user are answered at the "
                                                  "same time, and fewer while other users wait",
                                                  UserShares::MostOfOne(kWaitsMax))));
    }
    const CallWatch::Call running(at_.calls, *context);
    auto waited = WaitFor(at_.filesystem, *request, running.wanted());
    if (waited.ok()) return grpc::Status::OK;
    Error error = waited.error();
    if (error.code == ErrorCode::kIo)
      error.message = "bytes are lost, or cannot be stored; root is told of which files";
    return rpc::ToGrpc(error.WithContext(CannotMakeDurable(*request)));
  }

  grpc::Status Defer(grpc::ServerContext* context, const DeferRequest* request, DeferReply* reply) override {
    const auto caller = CallerOf(*context);
    if (!caller.ok()) return rpc::ToGrpc(caller.error());
    const Place place(commits_, caller->uid);
    if (!place.is_taken) return rpc::ToGrpc(TooMany("deferred commits", commits_max_));
    const CallWatch::Call running(at_.calls, *context);
    const fs::Tickets::Request asked{.who = *caller,
                                     .directory = InodeId{request->directory()},
                                     .to_parent = InodeId{request->final_parent()},
                                     .to_name = request->final_name(),
                                     .under_way_max = request->under_way_max()};
    fs::Caller maker{.uid = caller->uid, .gid = caller->gid, .context = running.wanted()};
    const auto let_in = [&](fs::Done<void> done) {
      at_.filesystem.names().WhenAdmitted(fs::NameChange::kMakes, std::move(done), maker);
    };
    const auto is_let_in = Await<void>(let_in, running.wanted());
    if (!is_let_in.ok()) return rpc::ToGrpc(is_let_in.error());
    const auto taken = at_.filesystem.tickets().Take(asked, running.wanted());
    if (!taken.ok()) return rpc::ToGrpc(taken.error());
    reply->set_ticket(*taken);
    return grpc::Status::OK;
  }

  grpc::Status AwaitTicket(grpc::ServerContext* context, const AwaitTicketRequest* request,
                           AwaitTicketReply* reply) override {
    const auto caller = CallerOf(*context);
    if (!caller.ok()) return rpc::ToGrpc(caller.error());
    const Place place(waits_, caller->uid);
    if (!place.is_taken) return rpc::ToGrpc(TooMany("calls of cairnfs wait and cairnfs commit --wait", kWaitsMax));
    const CallWatch::Call running(at_.calls, *context);
    Context wanted = running.wanted();
    if (request->has_timeout_ms()) {
      const auto timeout = std::chrono::milliseconds(
          std::min<uint64_t>(request->timeout_ms(), std::chrono::milliseconds(GateCall::kTimeoutMax).count()));
      wanted = wanted.WithTimeout(timeout);
    }
    fs::Tickets& tickets = at_.filesystem.tickets();
    const auto ticket = tickets.Await(wanted, request->ticket(), caller->uid);
    if (!ticket.ok()) return rpc::ToGrpc(ticket.error());
    reply->set_state(static_cast<AwaitTicketReply::State>(ticket->state));
    reply->set_name(ticket->to_name);
    if (const auto path = tickets.PathOf(running.wanted(), *ticket, *caller)) reply->set_path(*path);
    reply->set_reason(ticket->reason);
    if (reply->state() == AwaitTicketReply::UNDER_WAY) reply->set_reason(tickets.WhatHoldsUp(request->ticket()));
    return grpc::Status::OK;
  }

  grpc::Status TrashList(grpc::ServerContext* context, const TrashListRequest* request,
                         TrashListReply* reply) override {
    return ForTrash(*context, [&](const fs::Credentials& caller, const Context& wanted) -> cairnfs::Status {
      CAIRNFS_ASSIGN_OR_RETURN(const auto page, at_.filesystem.trash().List(wanted, caller, request->after()));
      for (const fs::TrashItem& item : page.items) ToMessage(item, *reply->add_entries());
      reply->set_next(page.next);
      return {};
    });
  }

  grpc::Status TrashRestore(grpc::ServerContext* context, const TrashRestoreRequest* request,
                            TrashRestoreReply* reply) override {
    return ForTrash(*context, [&](const fs::Credentials& caller, const Context& wanted) -> cairnfs::Status {
      std::optional<fs::Names::Place> place;
      if (request->to_parent() != 0) place = {InodeId{request->to_parent()}, request->to_name()};
      CAIRNFS_ASSIGN_OR_RETURN(const std::string path,
                               at_.filesystem.names().Restore(wanted, caller, InodeId{request->id()}, place));
      reply->set_path(path);
      return {};
    });
  }

  grpc::Status TrashEmpty(grpc::ServerContext* context, const TrashEmptyRequest* request,
                          TrashEmptyReply* reply) override {
    return ForTrash(*context, [&](const fs::Credentials& caller, const Context& wanted) -> cairnfs::Status {
      std::optional<InodeId> id;
      if (request->id() != 0) id = InodeId{request->id()};
      CAIRNFS_ASSIGN_OR_RETURN(const auto emptied, at_.filesystem.trash().Empty(wanted, caller, id));
      reply->set_entries(emptied.entries);
      reply->set_bytes(emptied.bytes);
      return {};
    });
  }

 private:
  // A call about the trash, of which each user has as many at once as of those that wait.
  grpc::Status ForTrash(const grpc::ServerContext& context,
                        const std::function<cairnfs::Status(const fs::Credentials&, const Context&)>& answer) {
    const auto caller = CallerOf(context);
    if (!caller.ok()) return rpc::ToGrpc(caller.error());
    const Place place(waits_, caller->uid);
    if (!place.is_taken) {
      return rpc::ToGrpc(MakeError(ErrorCode::kBusy, "too many calls of cairnfs wait and cairnfs trash at once"));
    }
    const CallWatch::Call running(at_.calls, context);
    const cairnfs::Status answered = answer(*caller, running.wanted());
    return answered.ok() ? grpc::Status::OK : rpc::ToGrpc(answered.error());
  }

  static Error TooMany(const std::string& what, unsigned places) {
    return MakeError(ErrorCode::kBusy, fmt::format("no more than {} {} of a user on a host are answered at the same "
                                                   "time, and fewer while other users call",
                                                   UserShares::MostOfOne(places), what));
  }

  // Each call holds a thread.
  struct Place {
    Place(UserShares& of, uid_t who) : shares(of), user(who), is_taken(of.Take(who)) {}
    ~Place() {
      if (is_taken) shares.Leave(user);
    }
    Place(const Place&) = delete;
    UserShares& shares;
    const uid_t user;
    const bool is_taken;
  };

  // Whether the answer may come later: from the store when it is back, from the next session, or from another rank.
  static bool IsLater(ErrorCode code) {
    return code == ErrorCode::kUnavailable || code == ErrorCode::kStale || code == ErrorCode::kInterrupted;
  }

  // Whether the directory has its final name, durably. On a host alone a name is seen before it is durable, and the
  // caller that renamed may not have waited for the end.
  Result<bool> HasFinalName(const GateCall& call, const Context& wanted) {
    auto has_name = [&] {
      return at_.filesystem.names().HasName(wanted, call.directory, call.final_parent, call.final_name);
    };
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_seen, has_name());
    if (!is_seen) return false;
    auto sync = [this](fs::Done<void> done) { at_.filesystem.maintenance().SyncNames(std::move(done)); };
    CAIRNFS_RETURN_IF_ERROR(Await<void>(sync, wanted));
    return has_name();  // a rename that cannot be made durable is taken back
  }

  // One at a time: strangers ask, too, and each takes memory.
  cairnfs::Status CheckRequired(const GateCall& call, const Context& wanted) {
    CAIRNFS_ASSIGN_OR_RETURN(RequiredFiles required, RequiredFiles::Parse(call.required));
    {
      MutexLock lock(mutex_);
      const auto is_free = [this]() REQUIRES_LOCK(mutex_) { return !is_checking_; };
      if (!wanted.Wait(mutex_, checked_, is_free)) return MakeError(ErrorCode::kInterrupted, "the caller is gone");
      is_checking_ = true;
    }
    const auto add = [&](std::string_view name) { required.Add(name); };
    const cairnfs::Status visited = at_.filesystem.names().VisitFilesBelow(wanted, call.directory, add);
    {
      MutexLock lock(mutex_);
      is_checking_ = false;
      checked_.NotifyAll();
    }
    CAIRNFS_RETURN_IF_ERROR(visited);
    const std::string missing = required.Missing();
    return missing.empty() ? cairnfs::Status() : cairnfs::Status(MakeError(ErrorCode::kFailed, missing));
  }

  Result<fs::Credentials> CallerOf(const grpc::ServerContext& context) {
    auto caller = door_.load()->CallerOf(context.peer());
    // Another connection gets this one's descriptor number only when this one and its calls are gone.
    if (!caller || context.IsCancelled()) return MakeError(ErrorCode::kInterrupted, "the caller is gone");
    return *std::move(caller);
  }

  const RankService::Parts at_;
  const unsigned commits_max_;
  UserShares commits_, waits_{kWaitsMax};  // of calls that run
  std::atomic<RankDoor*> door_{nullptr};   // set before a connection is admitted

  Mutex mutex_;
  CondVar checked_;
  bool is_checking_ GUARDED_BY(mutex_) = false;  // what somebody requires
};

class RankServer final : public RankService {
 public:
  RankServer(const Options& options, const Parts& parts) : options_(options), calls_(parts, options.commits_max) {}
  ~RankServer() override {
    if (server_ == nullptr) return;
    server_->Shutdown(Clock::LibraryDeadline(kRankShutdownGrace));
    server_->Wait();
  }
  Status Listen();

 private:
  const Options options_;
  RankCalls calls_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<RankDoor> door_;
};

Status RankServer::Listen() {
  grpc::ServerBuilder builder;
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  // A call that waits holds a thread. Any user may connect, and must not take all threads that the daemon can have.
  grpc::ResourceQuota quota("ranks");
  quota.SetMaxThreads(static_cast<int>(options_.commits_max + kWaitsMax) + kRankThreadsSpare);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(options_.connection_idle_max.count()));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kRankCallsOfConnectionMax);
  builder.SetMaxReceiveMessageSize(kRankMessageBytesMax);
  builder.RegisterService(&calls_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return MakeError(ErrorCode::kIo, "cannot start the service for ranks");
  auto admit = [this](int connection) {
    calls_.WaitForDoor();
    grpc::AddInsecureChannelFromFd(server_.get(), connection);
  };
  CAIRNFS_ASSIGN_OR_RETURN(door_, RankDoor::Open(RankSocketPath(options_.control_socket), admit));
  calls_.SetDoor(door_.get());
  return {};
}

}  // namespace

Result<std::unique_ptr<RankService>> RankService::Start(const Options& options, const Parts& parts) {
  auto server = std::make_unique<RankServer>(options, parts);
  CAIRNFS_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<RankService>(std::move(server));
}

}  // namespace cairnfs::control
