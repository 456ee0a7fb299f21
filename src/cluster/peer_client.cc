#include "cluster/peer_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cassert>
#include <utility>

#include "base/clock.h"
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

}  // namespace

struct PeerClient::Running {
  NodeId node;
  grpc::ClientContext context;
  std::shared_ptr<grpc::Channel> channel;
  grpc::ByteBuffer request, reply;
  Done done;
};

PeerClient::PeerClient(Membership& membership, unsigned connections_per_peer, WireCounters& counters,
                       std::chrono::milliseconds connect_timeout, rpc::Tls tls)
    : membership_(membership),
      connections_per_peer_(std::max(1U, connections_per_peer)),
      connect_timeout_(connect_timeout),
      counters_(counters),
      tls_(std::move(tls)) {
  KeepGrpcRunning();
}

PeerClient::~PeerClient() {
  Close();
  AwaitCalls();
  std::unordered_map<NodeId, Connections, NodeIdHash> peers;
  {
    MutexLock lock(mutex_);
    peers.swap(peers_);
  }
  peers.clear();  // closes the connections, which may still hold slices
  lending_.AwaitReturn();
}

Result<std::shared_ptr<grpc::Channel>> PeerClient::ChannelTo(const NodeId& node) {
  const ViewPtr view = membership_.view();
  const NodeInfo* info = view->Find(node);
  if (info == nullptr) return MakeError(ErrorCode::kNotFound, "no node " + node.ToHex() + " in the cluster");
  if (info->address.empty()) {
    return MakeError(ErrorCode::kUnavailable, "node " + info->name + " has told no address yet");
  }
  std::vector<Connections> replaced;  // let go without the lock
  MutexLock lock(mutex_);
  if (closed_) return MakeError(ErrorCode::kUnavailable, "this node is stopping");
  // A channel to a node that is gone would try to connect for ever.
  if (std::exchange(peers_revision_, view->revision) != view->revision) {
    std::erase_if(peers_, [&](auto& peer) {
      const bool is_gone = view->Find(peer.first) == nullptr;
      if (is_gone) replaced.push_back(std::move(peer.second));
      return is_gone;
    });
  }
  Connections& connections = peers_[node];
  if (connections.address != info->address) {
    replaced.push_back(std::exchange(connections, {info->address, {}}));
    for (unsigned i = 0; i < connections_per_peer_; ++i) {
      connections.channels.push_back(Connect({info->address, node}, static_cast<int>(i), connect_timeout_, tls_));
    }
  }
  auto channel = connections.channels[connections.next++ % connections.channels.size()];
  lock.Unlock();
  return channel;
}

void PeerClient::Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout,
                      Done done) {
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
                 [this, call](const grpc::Status& status) { Finish(call, status); });
}

std::optional<Clock::time_point> PeerClient::SilentSince(const NodeId& node) const {
  MutexLock lock(mutex_);
  const auto found = hearings_.find(node);
  if (found == hearings_.end() || found->second.waiting_calls == 0) return std::nullopt;
  return found->second.silent_since;
}

void PeerClient::NoteEnded(const NodeId& node, const grpc::Status& status) {
  // Else this host has given up, or found no connection.
  const grpc::StatusCode code = status.error_code();
  const bool is_answer = code != grpc::StatusCode::DEADLINE_EXCEEDED && code != grpc::StatusCode::CANCELLED &&
                         code != grpc::StatusCode::UNAVAILABLE;
  MutexLock lock(mutex_);
  Hearing& hearing = hearings_[node];
  --hearing.waiting_calls;
  if (is_answer) hearing.silent_since = Clock::Now();
}

void PeerClient::Finish(const std::shared_ptr<Running>& call, const grpc::Status& status) {
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

void PeerClient::EndCalls(const NodeId& node) {
  MutexLock lock(mutex_);
  for (const auto& call : running_) {
    if (call->node == node) call->context.TryCancel();
  }
}

void PeerClient::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  for (const auto& call : running_) call->context.TryCancel();
}

void PeerClient::AwaitCalls() {
  MutexLock lock(mutex_);
  assert(closed_);
  while (!running_.empty()) ended_.Wait(mutex_);
}

}  // namespace cairnfs::cluster
