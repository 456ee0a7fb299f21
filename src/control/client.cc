#include "control/client.h"

#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "control.grpc.pb.h"
#include "control/convert.h"
#include "control/socket_uri.h"
#include "rpc/status.h"

namespace cairnfs::control {
namespace {

// A check may name thousands of paths.
constexpr int kReplyBytesMax = 64 << 20;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kReplyBytesMax);
  return grpc::CreateCustomChannel(SocketUri(socket_path), grpc::InsecureChannelCredentials(), arguments);
}

// gRPC reports any failure to connect alike; one plain connect tells them apart.
Status Reachable(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return MakeError(ErrorCode::kInvalidArgument, "the path of the control socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError(errno, "cannot make a socket");
  int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  int error = errno;
  close(fd);
  if (connected == 0) return {};
  if (error == EACCES || error == EPERM) {
    return MakeError(ErrorCode::kPermission,
                     "only root and the user whom the daemon runs as may use its control socket " + path);
  }
  return MakeError(ErrorCode::kUnavailable, "no daemon answers on " + path + ": " + std::strerror(error));
}

}  // namespace

class Client::Impl {
 public:
  explicit Impl(const std::string& socket_path)
      : socket_path_(socket_path), stub_(Control::NewStub(ChannelTo(socket_path))) {}

  const std::string socket_path_;
  const std::unique_ptr<Control::Stub> stub_;

  // One unary call; it takes as long as it takes, unless `seconds` bounds it.
  template <typename Request, typename Reply, typename Method>
  Status Call(Method method, const Request& request, Reply& reply, int seconds = 0) {
    CAIRNFS_RETURN_IF_ERROR(Reachable(socket_path_));
    grpc::ClientContext context;
    if (seconds != 0) context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    if (!status.ok()) return rpc::FromGrpc(status);
    return {};
  }
};

Client::Client(const std::string& socket_path) : impl_(std::make_unique<Impl>(socket_path)) {}
Client::Client(Client&&) noexcept = default;
Client::~Client() = default;

Result<StatusReport> Client::GetStatus() {
  StatusReply reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Status, StatusRequest{}, reply, 60));
  return FromMessage(reply);
}

Status Client::Wait(const std::string& path) {
  WaitRequest request;
  request.set_path(path);
  WaitReply reply;
  return impl_->Call(&Control::Stub::Wait, request, reply);
}

Result<GcReport> Client::Gc(const std::function<void(const GcReport&)>& on_progress) {
  CAIRNFS_RETURN_IF_ERROR(Reachable(impl_->socket_path_));
  grpc::ClientContext context;
  auto reader = impl_->stub_->Gc(&context, GcRequest{});
  GcProgress progress;
  GcReport last;
  while (reader->Read(&progress)) {
    last = FromMessage(progress);
    on_progress(last);
  }
  grpc::Status status = reader->Finish();
  if (!status.ok()) return rpc::FromGrpc(status);
  return last;
}

Result<CheckReport> Client::Check() {
  CheckReply reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Check, CheckRequest{}, reply));
  return FromMessage(reply);
}

Result<ClusterReport> Client::GetCluster() {
  ClusterReply reply;
  CAIRNFS_RETURN_IF_ERROR(impl_->Call(&Control::Stub::Cluster, ClusterRequest{}, reply, 60));
  return FromMessage(reply);
}

Status Client::Forget(const std::string& node) {
  ForgetRequest request;
  request.set_node(node);
  ForgetReply reply;
  return impl_->Call(&Control::Stub::Forget, request, reply, 60);
}

Status Client::Commit(const GateCall& call, const std::function<Status()>& rename) {
  const std::string path = RankSocketPath(impl_->socket_path_);
  Status reachable = Reachable(path);
  if (!reachable.ok() && reachable.error().code == ErrorCode::kPermission) {
    return MakeError(ErrorCode::kPermission,
                     "the socket for ranks, " + path +
                         ", cannot be reached: the directories above it must let every user pass (chmod o+x)");
  }
  CAIRNFS_RETURN_IF_ERROR(reachable);
  auto stub = Control::NewStub(ChannelTo(path));
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
  if (!status.ok()) return rpc::FromGrpc(status);
  return {};
}

Status Client::Stop() {
  StopReply reply;
  return impl_->Call(&Control::Stub::Stop, StopRequest{}, reply, 60);
}

}  // namespace cairnfs::control
