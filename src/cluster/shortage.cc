#include "cluster/shortage.h"

#include <algorithm>
#include <functional>

namespace cairnfs::cluster {
namespace {

// Nodes that take nothing: names, each after a space.
struct NotTaking {
  std::string away, full;
  bool IsForRoomAlone() const { return away.empty() && !full.empty(); }
};

NotTaking FindNotTaking(const View& view) {
  NotTaking nodes;
  for (const NodeInfo& node : view.nodes) {
    const std::string name = " " + (node.name.empty() ? node.id.ToHex() : node.name);
    if (node.state != NodeState::kUp) {
      nodes.away += name;
    } else if (node.full) {
      nodes.full += name;
    }
  }
  return nodes;
}

std::string WhatHelps(const View& view, const NotTaking& nodes, size_t min_replicas) {
  if (nodes.IsForRoomAlone()) return "Add room or a node";
  const std::string bring = nodes.away.empty() ? "Add a node" : "Bring nodes back";
  if (min_replicas <= 1) return bring;
  const auto taking = std::count_if(view.nodes.begin(), view.nodes.end(), std::mem_fn(&NodeInfo::takes_chunks));
  const auto enough = std::clamp<size_t>(static_cast<size_t>(taking), 1, min_replicas - 1);
  return bring + ", or lower min_replicas (cairnfs cluster set min-replicas " + std::to_string(enough) + ")";
}

}  // namespace

std::string Shortage::Describe() const {
  const NotTaking nodes = FindNotTaking(*view);
  std::string text =
      std::to_string(chunks) + " chunks have fewer than " + std::to_string(min_replicas) + " durable copies";
  if (!nodes.away.empty()) text += "; nodes that do not answer:" + nodes.away;
  if (!nodes.full.empty()) text += "; nodes that are full:" + nodes.full;
  if (nodes.away.empty() && nodes.full.empty()) {
    text += "; the cluster has " + std::to_string(view->nodes.size()) + " nodes";
  }
  return text + ". " + WhatHelps(*view, nodes, min_replicas) + "; min_replicas is " + std::to_string(min_replicas) +
         ", copies is " + std::to_string(copies);
}

Error Shortage::ToError(std::string_view what) const {
  return MakeError(FindNotTaking(*view).IsForRoomAlone() ? ErrorCode::kNoSpace : ErrorCode::kUnavailable,
                   std::string(what) + ": " + Describe());
}

}  // namespace cairnfs::cluster
