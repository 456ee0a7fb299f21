// Where the copies of a chunk lie: weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to
// increase hit rates", 1998; weights after Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005).
#pragma once

#include <span>
#include <vector>

#include "cluster/types.h"

namespace cairnfs::cluster {

// All nodes that are not out, best first, for this digest: the first is its home. A pure function of digest, ids and
// weights; nodes of weight 0 come last. Nodes that are down or full keep their places: who needs one that answers skips
// them.
std::vector<const NodeInfo*> Order(const View& view, const Digest& digest);

// The nodes that should hold the `copies` copies: `writer`, if not null and of weight above 0, and the first of the
// order that are up and not full, no two of one failure domain as long as there are domains enough. Fewer when there
// are not enough nodes.
std::vector<const NodeInfo*> Targets(const View& view, const Digest& digest, const NodeInfo* writer, unsigned copies);

}  // namespace cairnfs::cluster
