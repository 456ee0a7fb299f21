#include "cluster/peer_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

#include "cluster/peer_wire.h"
#include "rpc/status.h"

namespace cairnfs::cluster {
namespace {

constexpr int kPingIntervalMinMs = 5'000;
constexpr std::chrono::milliseconds kShutdownGrace{100};

struct Shared {
  PeerServer::Options options;
  Membership* membership;
  WireCounters* counters;
  PeerServer::Handler handler;
  Lending lending;
  std::atomic<size_t> request_bytes{0};
};

// One call. It lives until gRPC says OnDone, which comes only after the answer.
class Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(Shared& shared, std::string path) : shared_(shared), path_(std::move(path)) { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::INVALID_ARGUMENT, "the call has no message"});
    request_bytes_ = request_.Length();
    shared_.counters->received_bytes.fetch_add(WireBytes(request_bytes_), std::memory_order_relaxed);
    if (shared_.request_bytes.fetch_add(request_bytes_) + request_bytes_ > shared_.options.request_bytes_max) {
      return Fail(MakeError(ErrorCode::kBusy, "this node has too many requests in memory"));
    }
    auto method = PeerMethodOfPath(path_);
    if (!method) return Fail(MakeError(ErrorCode::kNotSupported, "no method " + path_));
    auto message = FromByteBuffer(request_);
    request_.Clear();
    if (!message) return Fail(MakeError(ErrorCode::kInvalidArgument, "the message cannot be decoded"));
    auto envelope = DecodeEnvelope(message->head);
    if (!envelope) return Fail(MakeError(ErrorCode::kInvalidArgument, "the message is of another version"));
    if (Status admitted = Admit(*envelope); !admitted.ok()) return Fail(admitted.error());
    message->head.erase(0, kEnvelopeBytes);
    shared_.handler(*method, envelope->from, *std::move(message), [this](Result<PeerMessage> reply) {
      if (!reply.ok()) return Fail(reply.error());
      reply_ = ToByteBuffer("", *reply, shared_.lending);
      shared_.counters->sent_bytes.fetch_add(WireBytes(reply_.Length()), std::memory_order_relaxed);
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
    });
  }

  void OnDone() override {
    shared_.request_bytes.fetch_sub(request_bytes_);
    delete this;
  }

 private:
  void Fail(const Error& error) { Finish(rpc::ToGrpc(error)); }

  Status Admit(const Envelope& envelope) const {
    if (envelope.to != shared_.membership->self()) {
      return MakeError(ErrorCode::kNotFound,
                       "this is node " + shared_.membership->self().ToHex() + ", not " + envelope.to.ToHex());
    }
    const ViewPtr view = shared_.membership->view();
    const NodeInfo* caller = view->Find(envelope.from);
    if (caller == nullptr || caller->state == NodeState::kOut) {
      return MakeError(ErrorCode::kUnavailable, "node " + envelope.from.ToHex() + " is not in the cluster");
    }
    return {};
  }

  Shared& shared_;
  const std::string path_;
  size_t request_bytes_ = 0;
  grpc::ByteBuffer request_, reply_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(Shared& shared) : shared_(shared) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Call(shared_, context->method());
  }

 private:
  Shared& shared_;
};

class ServerImpl final : public PeerServer {
 public:
  ServerImpl(const Options& options, Membership& membership, WireCounters& counters, Handler handler) {
    shared_.options = options;
    shared_.membership = &membership;
    shared_.counters = &counters;
    shared_.handler = std::move(handler);
  }

  ~ServerImpl() override {
    if (server_) {
      server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
      server_.reset();
    }
    shared_.lending.AwaitReturn();
  }

  Status Listen() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(shared_.options.listen, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port that is taken is an error
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingIntervalMinMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, static_cast<int>(kMiB));
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
    builder.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "cannot listen on " + shared_.options.listen +
                           " for other nodes; give IP:PORT of this host, with a free port");
    }
    address_ = shared_.options.listen.substr(0, shared_.options.listen.rfind(':')) + ":" + std::to_string(port);
    return {};
  }

  const std::string& address() const override { return address_; }

 private:
  Shared shared_;
  Service service_{shared_};
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

Result<std::unique_ptr<PeerServer>> PeerServer::Start(const Options& options, Membership& membership,
                                                      WireCounters& counters, Handler handler) {
  auto server = std::make_unique<ServerImpl>(options, membership, counters, std::move(handler));
  CAIRNFS_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<PeerServer>(std::move(server));
}

}  // namespace cairnfs::cluster
