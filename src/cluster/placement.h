// Where the copies of a chunk lie: weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to
// increase hit rates", 1998; weights after Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005).
//
// Each node gets a distance from the digest, -ln(u) / weight with u from a hash of both, which is exponentially
// distributed; the nearest node wins, in proportion to its weight. All functions are pure, of the digest and the nodes'
// ids and weights, and give the same on every host: they use only operations that IEEE 754 defines to the last bit.
// A node that comes, goes or changes its weight moves only the copies that it gains or loses.
//
// The pointers point into the view. Time grows with the number of nodes: about 1 us for First and MoreTargets with
// 1,000.
#pragma once

#include <optional>
#include <vector>

#include "cluster/types.h"

namespace cairnfs::cluster {

// All nodes that are not out, best first, for this digest: the first is its home. Nodes of weight 0 come last. Nodes
// that are down or full keep their places: who needs one that answers skips them.
std::vector<const NodeInfo*> Order(const View& view, const Digest& digest);
// The first `count` of Order, or all when there are fewer; much faster.
std::vector<const NodeInfo*> First(const View& view, const Digest& digest, size_t count);
// The first of the order that is up, or `self`, which counts as up: it plays the part of the home. `self` when there is
// none.
NodeId ActingHome(const View& view, const Digest& digest, const NodeId& self);

// The `count` nodes that should get a copy where those of `have` hold one: the first of the order, `except` left out,
// that are up, not full and of weight above 0, no two of them or of `have` of one failure domain as long as there are
// domains enough. Fewer when there are not enough nodes; or, with kOnly, domains.
enum class NewDomains { kFirst, kOnly };
std::vector<const NodeInfo*> MoreTargets(const View& view, const Digest& digest,
                                         const std::vector<const NodeInfo*>& have, size_t count,
                                         NewDomains new_domains = NewDomains::kFirst,
                                         const std::optional<NodeId>& except = std::nullopt);
// The `copies` nodes that should have the chunk, of which those of `have` have it now: the first of the order that are
// of weight above 0, and not full or have it already; no two of one failure domain as long as there are domains enough.
// Nodes that are down are expected back, and keep their places. Fewer when there are not enough nodes. kHolders: of
// those of `have` alone.
enum class TargetsAmong { kAll, kHolders };
std::vector<const NodeInfo*> Targets(const View& view, const Digest& digest, const std::vector<const NodeInfo*>& have,
                                     size_t copies, TargetsAmong among = TargetsAmong::kAll);
// In how many failure domains the nodes are.
size_t DomainCount(const std::vector<const NodeInfo*>& nodes);

}  // namespace cairnfs::cluster
