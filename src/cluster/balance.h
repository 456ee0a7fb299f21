// Whether a node has more than its share of what is stored. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>

#include "cluster/types.h"

namespace cairnfs::cluster {

// Bytes of chunks on each node, of those that have told it.
using StoredBytes = std::unordered_map<NodeId, uint64_t, NodeIdHash>;

// Nodes that are nearer to their shares than both are left as they are: those who save keep a copy of theirs at hand.
inline constexpr double kBalanceSlack = 0.05;  // of the share
inline constexpr double kBalanceSlackBytes = 16.0 * kMiB;

// Whether copies that need not lie on the node are to move to the nodes that should have them: it is of weight 0, or
// has more than its share while some node is further from its own than the slack. Shares go by the weights.
inline bool GivesAway(const View& view, const StoredBytes& stored, const NodeId& id) {
  const NodeInfo* node = view.Find(id);
  if (node == nullptr) return false;
  if (node->weight == 0) return true;
  double total = 0, weights = 0;
  for (const NodeInfo& other : view.nodes) {
    const auto bytes = stored.find(other.id);
    if (bytes == stored.end()) continue;
    total += static_cast<double>(bytes->second);
    weights += other.weight;
  }
  const auto own = stored.find(id);
  if (own == stored.end() || weights == 0) return false;
  bool is_uneven = false;
  for (const NodeInfo& other : view.nodes) {
    const auto bytes = stored.find(other.id);
    if (bytes == stored.end()) continue;
    const double share = total * other.weight / weights;
    is_uneven = is_uneven || std::abs(static_cast<double>(bytes->second) - share) >
                                 std::max(kBalanceSlack * share, kBalanceSlackBytes);
  }
  return is_uneven && static_cast<double>(own->second) > total * node->weight / weights;
}

}  // namespace cairnfs::cluster
