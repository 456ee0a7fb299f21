// Peers: what hosts ask each other beside chunks, over the peer service that each listens with.
#pragma once

#include <functional>
#include <vector>

#include "base/context.h"
#include "cluster/types.h"

namespace cairnfs::cluster {

// Answers for this host. For each: whether a process on this host has it open. Where not, the host refuses (kStale) to
// open it from now on: asked only about inodes that have no name left. Any thread; may block.
using OrphanHandler = std::function<std::vector<bool>(const std::vector<InodeId>& inodes)>;

// Answers for this host. kPlaces: the directories in which processes of this host have files open, each once, by where
// it last found their names. kWritten: the files that they have open for writing, or of which this host is yet to
// publish bytes. kWrittenForSeal: the same, once no change is under way that has not seen what seals there are now; of
// one that does not end it is told too. Any thread; does not block for long.
enum class OpenWhat { kPlaces, kWritten, kWrittenForSeal };
using OpenHandler = std::function<Result<std::vector<InodeId>>(OpenWhat what)>;

class Peers {
 public:
  virtual ~Peers() = default;
  // Empty: nobody answers any more. Returns once no call is in the one before.
  virtual void SetHandler(OrphanHandler handler) = 0;
  // Asks that host's handler. kUnavailable: the node cannot be reached, or did not answer by the deadline of `context`,
  // which has one. kNotFound: no such node. kInterrupted: the context was stopped.
  virtual Result<std::vector<bool>> HoldOrphans(const Context& context, const NodeId& node,
                                                const std::vector<InodeId>& inodes) = 0;
  // As SetHandler and HoldOrphans. kNotSupported: that node's version does not say.
  virtual void SetOpenHandler(OpenHandler handler) = 0;
  virtual Result<std::vector<InodeId>> OpenFiles(const Context& context, const NodeId& node, OpenWhat what) = 0;
};

}  // namespace cairnfs::cluster
