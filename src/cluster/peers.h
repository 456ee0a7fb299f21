// Peers: what hosts ask each other beside chunks, over the peer service that each listens with.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "base/context.h"
#include "cluster/types.h"

namespace cairnfs::cluster {

// Answers for this host; the filesystem implements it. Any thread; calls may block as told.
class PeerHandler {
 public:
  virtual ~PeerHandler() = default;
  // For each: whether a process on this host has it open. Where not, the host refuses (kStale) to open it from now on:
  // asked only about inodes that have no name left.
  virtual std::vector<bool> HoldOrphans(const std::vector<InodeId>& inodes) = 0;
};

class Peers {
 public:
  virtual ~Peers() = default;
  // null: nobody answers any more; returns once no call is in the handler.
  virtual void SetHandler(PeerHandler* handler) = 0;
  // kUnavailable: the node cannot be reached, or did not answer by the deadline of `context`, which has one. kNotFound:
  // no such node. kInterrupted: the context was stopped.
  virtual Result<std::vector<bool>> HoldOrphans(const Context& context, const NodeId& node,
                                                const std::vector<InodeId>& inodes) = 0;
};

}  // namespace cairnfs::cluster
