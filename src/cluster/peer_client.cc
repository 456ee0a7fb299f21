#include "cluster/peer_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cassert>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "cluster/peer_wire.h"
#include "rpc/status.h"

namespace cairnfs::cluster {
namespace {

// A node that comes back is found again within a second.
constexpr int kBackoffMinMs = 100;
constexpr int kBackoffMaxMs = 1000;
constexpr int kKeepAliveMs = 10'000;
constexpr int kKeepAliveTimeoutMs = 5'000;
constexpr int kFrameBytes = static_cast<int>(kMiB);

struct Target {
  std::string address;
  NodeId node;
};

std::shared_ptr<grpc::Channel> Connect(const Target& target, int index, std::chrono::milliseconds timeout,
                                       const rpc::Tls& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else equal channels share one connection
  arguments.SetInt("cairnfs.connection", index);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kBackoffMinMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMaxMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(timeout.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // gRPC would keep a copy of each message for them
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageBytesMax));
  arguments.SetMaxSendMessageSize(static_cast<int>(kMessageBytesMax));
  const auto credentials = tls.Client(rpc::CertificateName(target.node.ToHex()), arguments);
  return grpc::CreateCustomChannel(target.address, credentials, arguments);
}

struct Connections {
  std::string address;
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  size_t next = 0;
};

}  // namespace

class PeerClient::Impl : public std::enable_shared_from_this<PeerClient::Impl> {
 public:
  Impl(Membership& membership, unsigned connections_per_peer, WireCounters& counters,
       std::chrono::milliseconds connect_timeout, rpc::Tls tls)
      : membership_(membership),
        connections_per_peer_(std::max(1U, connections_per_peer)),
        connect_timeout_(connect_timeout),
        counters_(counters),
        tls_(std::move(tls)) {}

  void Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout, Done done);
  std::optional<Clock::time_point> SilentSince(const NodeId& node) const;
  void EndCalls(const NodeId& node);
  void Close();
  void AwaitCalls();
  void AwaitEnd();

 private:
  struct Running {
    NodeId node;
    grpc::ClientContext context;
    std::shared_ptr<grpc::Channel> channel;
    grpc::ByteBuffer request, reply;
    Done done;
  };

  Result<std::shared_ptr<grpc::Channel>> ChannelTo(const NodeId& node);
  void NoteEnded(const NodeId& node, const grpc::Status& status);
  void Finish(const std::shared_ptr<Running>& call, const grpc::Status& status);

  Membership& membership_;
  const unsigned connections_per_peer_;
  const std::chrono::milliseconds connect_timeout_;
  WireCounters& counters_;
  const rpc::Tls tls_;
  Lending lending_;

  mutable Mutex mutex_;
  CondVar ended_;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::unordered_map<NodeId, Connections, NodeIdHash> peers_ GUARDED_BY(mutex_);
  uint64_t peers_revision_ GUARDED_BY(mutex_) = 0;  // of the view, with whose nodes peers_ was compared
  std::unordered_set<std::shared_ptr<Running>> running_ GUARDED_BY(mutex_);
  struct Hearing {
    size_t waiting_calls = 0;
    Clock::time_point silent_since{};  // the node's last answer, or the first of the calls that wait
  };
  std::unordered_map<NodeId, Hearing, NodeIdHash> hearings_ GUARDED_BY(mutex_);
};

Result<std::shared_ptr<grpc::Channel>> PeerClient::Impl::ChannelTo(const NodeId& node) {
  const ViewPtr view = membership_.view();
  const NodeInfo* info = view->Find(node);
  if (info == nullptr) return MakeError(ErrorCode::kNotFound, "no node " + node.ToHex() + " in the cluster");
  if (info->address.empty()) {
    return MakeError(ErrorCode::kUnavailable, "node " + info->name + " has told no address yet");
  }
  std::vector<std::shared_ptr<grpc::Channel>> replaced;  // let go without the lock
  MutexLock lock(mutex_);
  if (closed_) return MakeError(ErrorCode::kUnavailable, "this node is stopping");
  // A channel to a node that is gone would try to connect for ever.
  if (std::exchange(peers_revision_, view->revision) != view->revision) {
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (view->Find(peer->first) == nullptr) {
        std::move(peer->second.channels.begin(), peer->second.channels.end(), std::back_inserter(replaced));
        peer = peers_.erase(peer);
      } else {
        ++peer;
      }
    }
  }
  Connections& connections = peers_[node];
  if (connections.address != info->address) {
    std::move(connections.channels.begin(), connections.channels.end(), std::back_inserter(replaced));
    connections.channels.clear();
    connections.address = info->address;
    for (unsigned i = 0; i < connections_per_peer_; ++i) {
      connections.channels.push_back(Connect({info->address, node}, static_cast<int>(i), connect_timeout_, tls_));
    }
  }
  auto channel = connections.channels[connections.next++ % connections.channels.size()];
  lock.Unlock();
  return channel;
}

void PeerClient::Impl::Call(const NodeId& node, PeerMethod method, PeerMessage request,
                            std::chrono::milliseconds timeout, Done done) {
  auto channel = ChannelTo(node);
  if (!channel.ok()) return done(channel.error());
  auto call = std::make_shared<Running>();
  call->node = node;
  call->channel = *std::move(channel);
  call->context.set_deadline(Clock::LibraryDeadline(timeout));
  call->request = ToByteBuffer(EncodeEnvelope({node, membership_.self()}), request, lending_);
  request = {};
  call->done = std::move(done);
  counters_.sent_bytes.fetch_add(WireBytes(call->request.Length()), std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    if (closed_) {
      lock.Unlock();
      return call->done(MakeError(ErrorCode::kUnavailable, "this node is stopping"));
    }
    running_.insert(call);
    Hearing& hearing = hearings_[node];
    if (hearing.waiting_calls++ == 0) hearing.silent_since = Clock::Now();
  }
  grpc::GenericStub stub(call->channel);
  stub.UnaryCall(&call->context, PeerMethodPath(method), grpc::StubOptions(), &call->request, &call->reply,
                 [self = shared_from_this(), call](const grpc::Status& status) { self->Finish(call, status); });
}

std::optional<Clock::time_point> PeerClient::Impl::SilentSince(const NodeId& node) const {
  MutexLock lock(mutex_);
  const auto found = hearings_.find(node);
  if (found == hearings_.end() || found->second.waiting_calls == 0) return std::nullopt;
  return found->second.silent_since;
}

void PeerClient::Impl::NoteEnded(const NodeId& node, const grpc::Status& status) {
  // Else this host has given up, or found no connection.
  const grpc::StatusCode code = status.error_code();
  const bool is_answer = code != grpc::StatusCode::DEADLINE_EXCEEDED && code != grpc::StatusCode::CANCELLED &&
                         code != grpc::StatusCode::UNAVAILABLE;
  MutexLock lock(mutex_);
  Hearing& hearing = hearings_[node];
  --hearing.waiting_calls;
  if (is_answer) hearing.silent_since = Clock::Now();
}

void PeerClient::Impl::Finish(const std::shared_ptr<Running>& call, const grpc::Status& status) {
  NoteEnded(call->node, status);
  call->request.Clear();
  if (status.ok()) {
    counters_.received_bytes.fetch_add(WireBytes(call->reply.Length()), std::memory_order_relaxed);
    auto reply = FromByteBuffer(call->reply);
    call->reply.Clear();
    if (reply) {
      call->done(*std::move(reply));
    } else {
      call->done(MakeError(ErrorCode::kIo, "a node answered what cannot be decoded"));
    }
  } else {
    Error error = rpc::FromGrpc(status);
    if (status.error_code() == grpc::StatusCode::CANCELLED && status.error_details().empty()) {
      error.code = ErrorCode::kUnavailable;
    }
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && status.error_details().empty()) {
      error.code = ErrorCode::kBusy;  // the port of the node has more in memory than it may: see rpc/guarded_port.cc
    }
    call->done(std::move(error));
  }
  call->done = nullptr;
  call->channel.reset();
  MutexLock lock(mutex_);
  running_.erase(call);
  if (running_.empty()) ended_.NotifyAll();
}

void PeerClient::Impl::EndCalls(const NodeId& node) {
  MutexLock lock(mutex_);
  for (const auto& call : running_) {
    if (call->node == node) call->context.TryCancel();
  }
}

void PeerClient::Impl::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (const auto& call : running_) call->context.TryCancel();
}

void PeerClient::Impl::AwaitCalls() {
  MutexLock lock(mutex_);
  assert(closed_);
  while (!running_.empty()) ended_.Wait(mutex_);
}

void PeerClient::Impl::AwaitEnd() {
  AwaitCalls();
  std::unordered_map<NodeId, Connections, NodeIdHash> peers;
  {
    MutexLock lock(mutex_);
    peers.swap(peers_);
  }
  peers.clear();  // closes the connections, which may still hold slices
  lending_.AwaitReturn();
}

PeerClient::PeerClient(Membership& membership, unsigned connections_per_peer, WireCounters& counters,
                       std::chrono::milliseconds connect_timeout, rpc::Tls tls)
    : impl_((KeepGrpcRunning(),
             std::make_shared<Impl>(membership, connections_per_peer, counters, connect_timeout, std::move(tls)))) {}

PeerClient::~PeerClient() {
  impl_->Close();
  impl_->AwaitEnd();
}

void PeerClient::Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout,
                      Done done) {
  impl_->Call(node, method, std::move(request), timeout, std::move(done));
}

std::optional<Clock::time_point> PeerClient::SilentSince(const NodeId& node) const { return impl_->SilentSince(node); }
void PeerClient::EndCalls(const NodeId& node) { impl_->EndCalls(node); }
void PeerClient::Close() { impl_->Close(); }
void PeerClient::AwaitCalls() { impl_->AwaitCalls(); }

}  // namespace cairnfs::cluster
