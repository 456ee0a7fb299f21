#include "cluster/peer_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "base/thread_priority.h"
#include "cluster/peer_wire.h"
#include "rpc/guarded_port.h"
#include "rpc/status.h"

namespace cairnfs::cluster {
namespace {

constexpr int kPingIntervalMinMs = 5'000;
constexpr std::chrono::milliseconds kShutdownGrace{100};

class Call;

// Replies with chunks take memory until the network has taken them: so many at once, the others wait.
class GetGate {
 public:
  // False: the call waits, and is given out by a later Leave.
  bool Enter(Call* call, size_t count_max) {
    MutexLock lock(mutex_);
    if (inside_ >= count_max) {
      waiting_.push_back(call);
      return false;
    }
    ++inside_;
    return true;
  }
  // Whose turn it is now; null: nobody's.
  Call* Leave() {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      --inside_;
      return nullptr;
    }
    Call* next = waiting_.front();
    waiting_.pop_front();
    return next;
  }

 private:
  Mutex mutex_;
  size_t inside_ GUARDED_BY(mutex_) = 0;
  std::deque<Call*> waiting_ GUARDED_BY(mutex_);
};

struct Shared {
  PeerServer::Options options;
  Membership* membership;
  WireCounters* counters;
  PeerServer::Handler handler;
  Lending lending;
  std::atomic<size_t> put_bytes{0}, question_bytes{0};
  GetGate gets;
  std::optional<rpc::GuardedPort> port;
};

// One call. It lives until gRPC says OnDone, which comes only after the answer.
class Call final : public grpc::ServerGenericBidiReactor {
 public:
  Call(Shared& shared, grpc::GenericCallbackServerContext* context)
      : shared_(shared), context_(context), method_(PeerMethodOfPath(context->method())) {
    auto certified = shared.port->Admit(*context);
    if (!certified.ok()) {
      Fail(certified.error());
      return;
    }
    certified_ = *std::move(certified);
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::INVALID_ARGUMENT, "the call has no message"});
    request_bytes_ = request_.Length();
    shared_.counters->received_bytes.fetch_add(WireBytes(request_bytes_), std::memory_order_relaxed);
    const bool is_put = method_ == PeerMethod::kPut;
    const size_t bytes_max = is_put ? shared_.options.put_bytes_max : shared_.options.question_bytes_max;
    if (InMemory().fetch_add(request_bytes_) + request_bytes_ > bytes_max) {
      return Fail(MakeError(ErrorCode::kBusy, is_put ? "this node has too many chunks in memory that it is to store"
                                                     : "this node has too many questions in memory"));
    }
    if (!method_) return Fail(NoMethod());
    auto message = FromByteBuffer(request_);
    request_.Clear();
    if (!message) return Fail(MakeError(ErrorCode::kInvalidArgument, "the message cannot be decoded"));
    auto envelope = DecodeEnvelope(message->head);
    if (!envelope.ok()) return Fail(envelope.error());
    if (Status admitted = Admit(*envelope); !admitted.ok()) return Fail(admitted.error());
    message->head.erase(0, kEnvelopeBytes);
    caller_ = envelope->from;
    message_ = *std::move(message);
    if (method_ == PeerMethod::kGet) {
      is_get_inside_ = true;  // once it has its turn, and nothing is done before
      if (!shared_.gets.Enter(this, shared_.options.gets_at_once_max)) return;
    }
    Answer();
  }

  void Answer() {
    if (context_->IsCancelled()) return Fail(MakeError(ErrorCode::kUnavailable, "the caller waits no more"));
    auto respond = [this](Result<PeerMessage> reply) {
      if (!reply.ok()) return Fail(reply.error());
      reply_ = ToByteBuffer("", *reply, shared_.lending);
      shared_.counters->sent_bytes.fetch_add(WireBytes(reply_.Length()), std::memory_order_relaxed);
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
    };
    shared_.handler(*method_, caller_, std::move(message_), std::move(respond));
  }

  void OnDone() override {
    InMemory().fetch_sub(request_bytes_);
    reply_.Clear();
    Call* next = is_get_inside_ ? shared_.gets.Leave() : nullptr;
    delete this;
    if (next != nullptr) next->Answer();
  }

 private:
  std::atomic<size_t>& InMemory() { return method_ == PeerMethod::kPut ? shared_.put_bytes : shared_.question_bytes; }
  void Fail(const Error& error) { Finish(rpc::ToGrpc(error)); }
  Error NoMethod() const {
    const std::string& metadata = shared_.options.metadata;
    std::string message = "no method " + context_->method();
    if (!metadata.empty()) message += ": the other hosts get chunks here, and the metadata is at " + metadata;
    return MakeError(ErrorCode::kNotSupported, std::move(message));
  }

  Status Admit(const Envelope& envelope) const {
    if (envelope.to != shared_.membership->self()) {
      return MakeError(ErrorCode::kNotFound,
                       "this is node " + shared_.membership->self().ToHex() + ", not " + envelope.to.ToHex());
    }
    if (!certified_.empty() && certified_ != envelope.from.ToHex()) {
      return shared_.port->Refuse(
          *context_, "it is of node " + certified_ + " and says that it is of node " + envelope.from.ToHex());
    }
    const ViewPtr view = shared_.membership->view();
    const NodeInfo* caller = view->Find(envelope.from);
    if (caller == nullptr || caller->state == NodeState::kOut) {
      return MakeError(ErrorCode::kUnavailable, "node " + envelope.from.ToHex() + " is not in the cluster");
    }
    return {};
  }

  Shared& shared_;
  grpc::GenericCallbackServerContext* const context_;
  const std::optional<PeerMethod> method_;
  size_t request_bytes_ = 0;
  bool is_get_inside_ = false;
  std::string certified_;  // the caller by its certificate, in hex; empty without TLS
  NodeId caller_;
  PeerMessage message_;
  grpc::ByteBuffer request_, reply_;
};

class Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(Shared& shared) : shared_(shared) {}
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return new Call(shared_, context);
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
    if (shared_.port) shared_.port->Close();
    if (server_) {
      server_->Shutdown(Clock::LibraryDeadline(kShutdownGrace));
      server_.reset();
    }
    shared_.lending.AwaitReturn();
  }

  Status Listen() {
    grpc::ServerBuilder builder;
    shared_.port.emplace(builder, rpc::PortGuard{shared_.options.tls, shared_.options.is_trusted,
                                                 [this](const std::string& node) { return CheckMember(node); }});
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingIntervalMinMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, static_cast<int>(kMiB));
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
    builder.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
    builder.RegisterCallbackGenericService(&service_);
    Status opened;
    RunInBackground([&] {
      server_ = builder.BuildAndStart();
      if (server_) opened = shared_.port->Open(shared_.options.listen);
    });
    if (!server_ || !opened.ok()) {
      // At a boot the address may come later.
      return MakeError(
          ErrorCode::kUnavailable,
          "cannot listen on " + shared_.options.listen +
              " for other nodes: it is in use, or no address of this host; give IP:PORT of this host, with a "
              "free port" +
              (opened.ok() ? "" : " (" + opened.error().message + ")"));
    }
    return {};
  }

  const std::string& address() const override { return shared_.port->address(); }
  uint64_t refused_total() const override { return shared_.port->refused_total(); }

 private:
  // One that has just joined is not known here for a moment.
  Status CheckMember(const std::string& node) const {
    const auto id = NodeId::FromHex(node);
    if (id && shared_.membership->view()->Find(*id) != nullptr) return {};
    return MakeError(ErrorCode::kUnavailable, "node " + node + " is not in the cluster");
  }

  Shared shared_;
  Service service_{shared_};
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<PeerServer>> PeerServer::Start(const Options& options, Membership& membership,
                                                      WireCounters& counters, Handler handler) {
  auto server = std::make_unique<ServerImpl>(options, membership, counters, std::move(handler));
  CAIRNFS_RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<PeerServer>(std::move(server));
}

}  // namespace cairnfs::cluster
