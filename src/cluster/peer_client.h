// Calls to other nodes: a few connections to each, deadlines on every call.
#pragma once

#include <grpcpp/channel.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/clock.h"
#include "cluster/membership.h"
#include "cluster/peer_message.h"
#include "cluster/peer_wire.h"
#include "rpc/tls.h"

namespace cairnfs::cluster {

// Shared by the client and the server of a node.
struct WireCounters {
  std::atomic<uint64_t> sent_bytes{0};      // with heads and framing
  std::atomic<uint64_t> received_bytes{0};  // the same
};

class PeerClient {
 public:
  // `done` is called once, on a thread of gRPC's, and must not block. Slices of the reply keep their memory alive.
  using Done = std::function<void(Result<PeerMessage>)>;

  // `membership` tells the addresses; it and `counters` outlive this. `connect_timeout`: calls to a node that does not
  // even refuse a connection fail after so long, if their own time is not over before. With `tls` a node counts as
  // reached only when its certificate names it.
  PeerClient(Membership& membership, unsigned connections_per_peer, WireCounters& counters,
             std::chrono::milliseconds connect_timeout, rpc::Tls tls = {});
  ~PeerClient();  // ends all calls (kUnavailable), and waits until gRPC has let go of the slices it was given

  // Sends the request from the memory it lies in. Any thread; does not block. kNotFound: no such node, or another one
  // answers at its address. kUnavailable: it cannot be reached, or did not answer within `timeout`. Else what the node
  // answered.
  void Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout, Done done);
  // Since when calls wait to which the node has answered nothing; nullopt: none waits. Any thread.
  std::optional<Clock::time_point> SilentSince(const NodeId& node) const;
  // Ends the calls to a node that are under way: it is down.
  void EndCalls(const NodeId& node);
  // Ends all calls, and refuses new ones.
  void Close();
  void AwaitCalls();  // until no `done` runs or is still to come. REQUIRES: closed

 private:
  struct Running;
  struct Connections {
    std::string address;
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    size_t next = 0;
  };
  struct Hearing {
    size_t waiting_calls = 0;
    Clock::time_point silent_since{};  // the node's last answer, or the first of the calls that wait
  };
  Result<std::shared_ptr<grpc::Channel>> ChannelTo(const NodeId& node) EXCLUDES_LOCK(mutex_);
  void NoteEnded(const NodeId& node, const grpc::Status& status) EXCLUDES_LOCK(mutex_);
  void Finish(const std::shared_ptr<Running>& call, const grpc::Status& status) EXCLUDES_LOCK(mutex_);

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
  std::unordered_map<NodeId, Hearing, NodeIdHash> hearings_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::cluster
