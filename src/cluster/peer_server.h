// The listening side of the calls between nodes.
#pragma once

#include <functional>
#include <memory>

#include "cluster/membership.h"
#include "cluster/peer_client.h"
#include "cluster/peer_message.h"

namespace cairnfs::cluster {

class PeerServer {
 public:
  using Respond = std::function<void(Result<PeerMessage>)>;  // called once, by any thread
  // Called on a thread of gRPC's: must not block.
  using Handler = std::function<void(PeerMethod method, const NodeId& caller, PeerMessage request, Respond respond)>;
  struct Options {
    std::string listen;                     // IP:PORT
    size_t request_bytes_max = 256 * kMiB;  // received and not answered; beyond it callers are told to come again
  };

  // kInvalidArgument: the address cannot be listened on. `membership` and `counters` outlive it.
  static Result<std::unique_ptr<PeerServer>> Start(const Options& options, Membership& membership,
                                                   WireCounters& counters, Handler handler);
  // Calls under way end for their callers. REQUIRES: whatever was given to the handler is answered soon.
  virtual ~PeerServer() = default;
  virtual const std::string& address() const = 0;
};

}  // namespace cairnfs::cluster
