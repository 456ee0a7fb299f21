// What is otherwise in a newer view of the nodes. Pure.
#pragma once

#include <vector>

#include "cluster/types.h"

namespace cairnfs::cluster {

struct NodeChanges {
  std::vector<NodeId> sessions_lost;  // also of nodes that have another session already
  std::vector<NodeId> down;           // were up
  std::vector<NodeId> came;           // are up, or have another session
  bool any_out = false;               // or forgotten
  bool any_up = false;                // that was not
  bool any_room = false;              // takes chunks, and did not
  bool any_weight = false;            // another one

  static NodeChanges Between(const View& before, const View& after) {
    NodeChanges changes;
    auto is_up = [](const NodeInfo* node) { return node != nullptr && node->state == NodeState::kUp; };
    auto is_out = [](const NodeInfo* node) { return node == nullptr || node->state == NodeState::kOut; };
    for (const NodeInfo& old : before.nodes) {
      const NodeInfo* now = after.Find(old.id);
      if (is_up(&old) && (!is_up(now) || now->session != old.session)) changes.sessions_lost.push_back(old.id);
      if (is_up(&old) && !is_up(now)) changes.down.push_back(old.id);
      changes.any_out = changes.any_out || (!is_out(&old) && is_out(now));
    }
    for (const NodeInfo& now : after.nodes) {
      if (!is_up(&now)) continue;
      const NodeInfo* old = before.Find(now.id);
      changes.any_weight = changes.any_weight || (old != nullptr && old->weight != now.weight);
      changes.any_up = changes.any_up || !is_up(old);
      changes.any_room = changes.any_room || (!now.full && (!is_up(old) || old->full));
      if (!is_up(old) || now.session != old->session) changes.came.push_back(now.id);
    }
    return changes;
  }
};

}  // namespace cairnfs::cluster
