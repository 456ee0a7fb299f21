#include "control/client.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "control.grpc.pb.h"
#include "control/convert.h"
#include "control/socket_uri.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

// A check may name thousands of paths.
constexpr int kReplyBytesMax = 64 << 20;

// Connects by hand: that tells errors apart which gRPC reports alike, and takes the path as it is. gRPC would split it
// at each comma.
Result<int> ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return MakeError(ErrorCode::kInvalidArgument, "the path of the control socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError(errno, "cannot make a socket");
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  const int error = errno;
  close(fd);
  if (error == EACCES || error == EPERM) {
    return MakeError(ErrorCode::kPermission,
                     "only root and the user whom the daemon runs as may use its control socket " + path);
  }
  return MakeError(ErrorCode::kUnavailable, "no daemon answers on " + path + ": " + std::strerror(error));
}

// Over a new connection, which ends with the stub.
Result<std::unique_ptr<Control::Stub>> StubFor(const std::string& path) {
  CAIRNFS_ASSIGN_OR_RETURN(const int fd, ConnectTo(path));
  // gRPC wants that. Set only now, because a connect that does not block would not wait for a busy daemon.
  fcntl(fd, F_SETFL, O_NONBLOCK);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  return Control::NewStub(grpc::CreateCustomInsecureChannelFromFd("control", fd, arguments));
}

constexpr std::chrono::seconds kDrainGrace{5};  // for the answer, after the time that it was given
constexpr int kStopSecondsMax = 5;              // the daemon only begins with it

// A daemon marks its own errors (rpc/status.h). After a connection was made, gRPC's own "unavailable" means that its
// other end is gone, and "cancelled", which nobody does here, that the server was shut down.
Error ErrorOf(const grpc::Status& status) {
  Error error = rpc::FromGrpc(status);
  const grpc::StatusCode code = status.error_code();
  const bool has_ended = code == grpc::StatusCode::UNAVAILABLE || code == grpc::StatusCode::CANCELLED;
  if (has_ended && status.error_details().empty()) {
    error.message = "the daemon ended before it answered, or has too many connections (" + error.message + ")";
  }
  return error;
}

}  // namespace

class Client::Impl {
 public:
  explicit Impl(const std::string& socket_path) : socket_path_(socket_path) {}

  const std::string socket_path_;

  // On the socket for every user.
  Result<std::unique_ptr<Control::Stub>> StubForRanks() const {
    const std::string path = RankSocketPath(socket_path_);
    auto stub = StubFor(path);
    if (stub.ok() || stub.error().code != ErrorCode::kPermission) return stub;
    return MakeError(ErrorCode::kPermission,
                     "the socket for ranks, " + path +
                         ", cannot be reached: the directories above it must let every user pass (chmod o+x)");
  }

  // One unary call; it takes as long as it takes, unless `seconds` bounds it.
  template <typename Request, typename Reply, typename Method>
  Status Call(Method method, const Request& request, Reply& reply, int seconds = 0) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubFor(socket_path_));
    grpc::ClientContext context;
    if (seconds != 0) context.set_deadline(Clock::LibraryDeadline(std::chrono::seconds(seconds)));
    grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return ErrorOf(status);
    return {};
  }

  // One that every user may make; it takes as long as it takes.
  template <typename Reply, typename Request, typename Method>
  Result<Reply> AskForAnybody(Method method, const Request& request) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubForRanks());
    grpc::ClientContext context;
    Reply reply;
    const grpc::Status status = (stub.get()->*method)(&context, request, &reply);
    if (!status.ok()) return ErrorOf(status);
    return reply;
  }

  // The same for one that is answered within a minute.
  template <typename Reply, typename Request, typename Method>
  Result<Reply> Ask(Method method, const Request& request) {
    Reply reply;
    CAIRNFS_RETURN_IF_ERROR(Call(method, request, reply, 60));
    return reply;
  }
};

Client::Client(const std::string& socket_path) : impl_(std::make_unique<Impl>(socket_path)) {}
Client::Client(Client&&) noexcept = default;
Client::~Client() = default;

Result<StatusReply> Client::GetStatus(const StatusQuery& query) {
  StatusRequest request;
  request.set_path(query.failures_at);
  request.set_exact(query.exact);
  request.set_metadata_owners(query.metadata_owners);
  StatusReply reply;
  const int seconds_max = query.exact ? 0 : query.metadata_owners ? 3600 : 60;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Status, request, reply, seconds_max));
  return reply;
}

std::optional<Status> Client::Wait(InodeId inode, const std::string& path) {
  auto stub = StubFor(impl_->socket_path_);
  if (!stub.ok() && stub.error().code == ErrorCode::kPermission) stub = impl_->StubForRanks();
  if (!stub.ok()) {
    const ErrorCode code = stub.error().code;
    if (code == ErrorCode::kPermission || code == ErrorCode::kUnavailable) return std::nullopt;
    return stub.error();
  }
  grpc::ClientContext context;
  WaitRequest request;
  request.set_path(path);
  request.set_inode(inode.value);
  WaitReply reply;
  const grpc::Status status = (*stub)->Wait(&context, request, &reply);
  return status.ok() ? Status() : Status(ErrorOf(status));
}

Result<UnwrittenReply> Client::GetUnwritten() {
  return impl_->Ask<UnwrittenReply>(&Control::Stub::Unwritten, UnwrittenRequest());
}

Result<StopEstimate> Client::Stop(std::chrono::milliseconds deadline) {
  StopRequest request;
  request.set_deadline_ms(static_cast<uint64_t>(std::max<int64_t>(deadline.count(), 0)));
  StopEstimate reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Stop, request, reply, kStopSecondsMax));
  return reply;
}

Result<std::optional<Unsaved>> Client::Drain(std::chrono::milliseconds deadline,
                                             const std::function<void(const StopEstimate&)>& on_estimate) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubFor(impl_->socket_path_));
  grpc::ClientContext context;
  context.set_deadline(Clock::LibraryDeadline(deadline + kDrainGrace));
  StopRequest request;
  request.set_deadline_ms(static_cast<uint64_t>(std::max<int64_t>(deadline.count(), 0)));
  auto reader = stub->Drain(&context, request);
  DrainStep step, last;
  while (reader->Read(&step)) {
    if (step.has_estimate()) on_estimate(step.estimate());
    last = step;
  }
  const grpc::Status status = reader->Finish();
  if (last.durable()) return std::optional<Unsaved>();
  if (last.has_unsaved()) return std::optional<Unsaved>(last.unsaved());
  if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return ErrorOf(status);
  Unsaved unsaved;
  unsaved.set_reason("the time was up, and the daemon cannot say what is not: the disk may not answer");
  return std::optional<Unsaved>(std::move(unsaved));
}

Result<StopOutcomeReply> Client::StopOutcome(bool was_told) {
  StopOutcomeRequest request;
  request.set_was_told(was_told);
  StopOutcomeReply reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::StopOutcome, request, reply, 2));
  return reply;
}

Result<GcProgress> Client::Gc(const GcRequest& request, const std::function<void(const GcProgress&)>& on_progress) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubFor(impl_->socket_path_));
  grpc::ClientContext context;
  auto reader = stub->Gc(&context, request);
  GcProgress progress;
  while (reader->Read(&progress)) on_progress(progress);
  grpc::Status status = reader->Finish();
  if (!status.ok()) return ErrorOf(status);
  return progress;
}

Result<HoldReply> Client::DumpNames(std::chrono::seconds hold,
                                    const std::function<Status(const std::string& bytes)>& take) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubFor(impl_->socket_path_));
  grpc::ClientContext context;
  DumpNamesRequest request;
  request.set_hold_seconds(static_cast<uint64_t>(hold.count()));
  auto reader = stub->DumpNames(&context, request);
  DumpNamesPiece piece;
  Status taken;
  while (taken.ok() && reader->Read(&piece)) taken = take(piece.bytes());
  if (!taken.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  CAIRNFS_RETURN_IF_ERROR(taken);
  if (!status.ok()) return ErrorOf(status);
  return piece.hold();
}

Result<HoldsReply> Client::Holds() { return impl_->Ask<HoldsReply>(&Control::Stub::Holds, HoldsRequest{}); }

Status Client::ReleaseHold(uint64_t id) {
  ReleaseHoldRequest request;
  request.set_id(id);
  ReleaseHoldReply reply;
  return impl_->Call(&Control::Stub::ReleaseHold, request, reply);
}

Status Client::SetQuota(const QuotaRequest& request, const std::function<void(uint64_t inodes)>& on_progress) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, StubFor(impl_->socket_path_));
  grpc::ClientContext context;
  auto reader = stub->SetQuota(&context, request);
  QuotaStep step;
  while (reader->Read(&step)) on_progress(step.inodes());
  const grpc::Status status = reader->Finish();
  return status.ok() ? Status() : Status(ErrorOf(status));
}

Status Client::PausePolicies() {
  PausePoliciesReply reply;
  return impl_->Call(&Control::Stub::PausePolicies, PausePoliciesRequest(), reply, 60);
}

Result<std::optional<CheckReply>> Client::Check(const std::function<void(const CheckProgress&)>& on_progress) {
  const auto stub = StubFor(impl_->socket_path_);
  if (!stub.ok() && stub.error().code == ErrorCode::kUnavailable) return std::optional<CheckReply>();
  if (!stub.ok()) return stub.error();
  grpc::ClientContext context;
  auto reader = (*stub)->Check(&context, CheckRequest{});
  std::optional<CheckReply> report;
  for (CheckStep step; reader->Read(&step);) {
    if (step.has_reply()) {
      report = std::move(*step.mutable_reply());
    } else {
      on_progress(step.progress());
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return ErrorOf(status);
  return report;
}

Result<ClusterReply> Client::GetCluster() {
  return impl_->Ask<ClusterReply>(&Control::Stub::Cluster, ClusterRequest{});
}

Result<NodeReply> Client::DrainNode(const DrainNodeRequest& request) {
  return impl_->Ask<NodeReply>(&Control::Stub::DrainNode, request);
}

Result<NodeReply> Client::RemoveNode(const RemoveNodeRequest& request) {
  return impl_->Ask<NodeReply>(&Control::Stub::RemoveNode, request);
}

Result<NodeReply> Client::ReplaceNode(const ReplaceNodeRequest& request) {
  return impl_->Ask<NodeReply>(&Control::Stub::ReplaceNode, request);
}

Result<NodeReply> Client::SetStandby(const SetStandbyRequest& request) {
  return impl_->Ask<NodeReply>(&Control::Stub::SetStandby, request);
}

Result<PromoteReply> Client::Promote(const PromoteRequest& request) {
  return impl_->Ask<PromoteReply>(&Control::Stub::Promote, request);
}

Status Client::Remount(const RemountCall& call, const std::function<Status(const RemountReport&)>& tell_kernel,
                       const std::function<void()>& take_back) {
  RemountRequest request;
  for (const std::string& option : call.options) request.add_options(option);
  request.set_config(call.config);
  request.set_directory(call.directory);
  request.set_only_look(true);
  RemountReply reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Remount, request, reply, 60));
  CAIRNFS_RETURN_IF_ERROR(tell_kernel({reply.read_only()}));
  request.set_only_look(false);
  Status done = impl_->Call(&Control::Stub::Remount, request, reply);
  if (!done.ok()) take_back();
  return done;
}

Result<TokenReply> Client::MakeToken(std::chrono::seconds life) {
  TokenRequest request;
  request.set_life_seconds(static_cast<uint64_t>(life.count()));
  return impl_->Ask<TokenReply>(&Control::Stub::MakeToken, request);
}

Result<SetMinReplicasReply> Client::SetMinReplicas(uint32_t min_replicas) {
  SetMinReplicasRequest request;
  request.set_min_replicas(min_replicas);
  return impl_->Ask<SetMinReplicasReply>(&Control::Stub::SetMinReplicas, request);
}

Result<uint64_t> Client::Defer(const DeferRequest& request) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, impl_->StubForRanks());
  grpc::ClientContext context;
  DeferReply reply;
  const grpc::Status status = stub->Defer(&context, request, &reply);
  if (!status.ok()) return ErrorOf(status);
  return reply.ticket();
}

Result<AwaitTicketReply> Client::AwaitTicket(const AwaitTicketRequest& request) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, impl_->StubForRanks());
  grpc::ClientContext context;
  AwaitTicketReply reply;
  const grpc::Status status = stub->AwaitTicket(&context, request, &reply);
  if (!status.ok()) return ErrorOf(status);
  return reply;
}

Status Client::TrashList(const std::function<void(const TrashEntry&)>& tell) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, impl_->StubForRanks());
  TrashListRequest request;
  do {
    grpc::ClientContext context;
    TrashListReply reply;
    const grpc::Status status = stub->TrashList(&context, request, &reply);
    if (!status.ok()) return ErrorOf(status);
    for (const TrashEntry& entry : reply.entries()) tell(entry);
    request.set_after(reply.next());
  } while (!request.after().empty());
  return {};
}

Result<TrashRestoreReply> Client::TrashRestore(const TrashRestoreRequest& request) {
  return impl_->AskForAnybody<TrashRestoreReply>(&Control::Stub::TrashRestore, request);
}

Result<TrashEmptyReply> Client::TrashEmpty(const TrashEmptyRequest& request) {
  return impl_->AskForAnybody<TrashEmptyReply>(&Control::Stub::TrashEmpty, request);
}

Status Client::Commit(const GateCall& call, const std::function<Status()>& rename) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto stub, impl_->StubForRanks());
  grpc::ClientContext context;
  auto stream = stub->Commit(&context);
  CommitRequest arrival;
  ToMessage(call, *arrival.mutable_arrival());
  bool writes = stream->Write(arrival);
  CommitReply reply;
  while (writes && stream->Read(&reply)) {
    CommitRequest outcome;
    Status renamed = rename();
    outcome.mutable_outcome()->set_error(renamed.ok() ? "" : renamed.error().message);
    writes = stream->Write(outcome);
  }
  stream->WritesDone();
  grpc::Status status = stream->Finish();
  if (!status.ok()) return ErrorOf(status);
  return {};
}

}  // namespace cairnfs::control
