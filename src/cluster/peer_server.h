// The listening side of the calls between nodes.
#pragma once

#include <functional>
#include <memory>

#include "cluster/membership.h"
#include "cluster/peer_client.h"
#include "cluster/peer_message.h"
#include "rpc/local_peer.h"
#include "rpc/tls.h"

namespace cairnfs::cluster {

class PeerServer {
 public:
  // Answers one call: once, by any thread.
  using Respond = std::function<void(Result<PeerMessage>)>;
  // Called on a thread of gRPC's: must not block.
  using Handler = std::function<void(PeerMethod method, const NodeId& caller, PeerMessage request, Respond respond)>;
  struct Options {
    std::string listen;         // IP:PORT
    std::string metadata;       // where the cluster's is, told to whoever asks for that here; may be empty
    rpc::Tls tls;               // none: addresses decide
    rpc::IsTrusted is_trusted;  // of other hosts, by their addresses, without TLS
    // Received and not answered; beyond these callers are told to come again (kBusy). Chunks count apart from all else,
    // so that a node which cannot take more of them still answers questions.
    size_t put_bytes_max = 128 * kMiB;
    size_t question_bytes_max = 32 * kMiB;
    // Requests for chunks that are worked on or whose replies are on their way; the others wait in their order.
    size_t gets_at_once_max = 48;
  };

  // kUnavailable: the address cannot be listened on. `membership` and `counters` outlive it.
  static Result<std::unique_ptr<PeerServer>> Start(const Options& options, Membership& membership,
                                                   WireCounters& counters, Handler handler);
  // Calls under way end for their callers. REQUIRES (unchecked): whatever was given to the handler is answered soon.
  virtual ~PeerServer() = default;
  virtual const std::string& address() const = 0;
  virtual uint64_t refused_total() const = 0;  // connections and calls
};

}  // namespace cairnfs::cluster
