#include "cluster/shortage.h"

#include <algorithm>

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

std::string WhatHelps(const Situation& situation, const NotTaking& nodes) {
  if (nodes.IsForRoomAlone()) return "Add room or a node";
  const std::string bring = nodes.away.empty() ? "Add a node" : "Bring nodes back";
  if (situation.min_replicas <= 1) return bring;
  const auto enough = std::clamp<size_t>(situation.CountTaking(), 1, situation.min_replicas - 1);
  return bring + ", or lower min_replicas (cairnfs cluster set min-replicas " + std::to_string(enough) + ")";
}

}  // namespace

std::string Shortage::Describe() const {
  const View& view = *situation.reachable;
  const std::string min_replicas = std::to_string(situation.min_replicas);
  const NotTaking nodes = FindNotTaking(view);
  std::string text = std::to_string(chunks) + " chunks have fewer than " + min_replicas + " durable copies";
  if (!nodes.away.empty()) text += "; nodes that do not answer:" + nodes.away;
  if (!nodes.full.empty()) text += "; nodes that are full:" + nodes.full;
  if (nodes.away.empty() && nodes.full.empty()) {
    text += "; the cluster has " + std::to_string(view.nodes.size()) + " nodes";
  }
  return text + ". " + WhatHelps(situation, nodes) + "; min_replicas is " + min_replicas + ", copies is " +
         std::to_string(situation.copies);
}

Error Shortage::ToError(std::string_view what) const {
  return MakeError(FindNotTaking(*situation.reachable).IsForRoomAlone() ? ErrorCode::kNoSpace : ErrorCode::kUnavailable,
                   std::string(what) + ": " + Describe());
}

}  // namespace cairnfs::cluster
