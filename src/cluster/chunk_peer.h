// What the peer service asks of the chunk store that it serves.
#pragma once

#include "cluster/peer_client.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {

class ChunkPeer {
 public:
  virtual ~ChunkPeer() = default;
  // Answers kHas, kConfirm, kPut and kGet; others kNotSupported. May block on the disk. `respond` is called once, at
  // once or later by another thread.
  virtual void Handle(PeerMethod method, const NodeId& caller, PeerMessage request, PeerServer::Respond respond) = 0;
  // Answers what is held back, from now on at once.
  virtual void StopHolding() = 0;
  virtual PeerClient& client() = 0;
  virtual WireCounters& wire() = 0;
};

}  // namespace cairnfs::cluster
