#include "cluster/types.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/hex.h"
#include "cluster/mix.h"

namespace cairnfs::cluster {
namespace {

std::vector<NodeInfo> Sorted(std::vector<NodeInfo> nodes) {
  std::sort(nodes.begin(), nodes.end(), [](const NodeInfo& a, const NodeInfo& b) { return a.id < b.id; });
  return nodes;
}

std::vector<View::Candidate> CandidatesOf(const std::vector<NodeInfo>& nodes) {
  std::vector<View::Candidate> candidates;
  std::unordered_map<std::string, uint32_t> domains;
  uint32_t next_domain = 0;
  for (uint32_t i = 0; i < nodes.size(); i++) {
    const NodeInfo& node = nodes[i];
    if (node.state == NodeState::kOut) continue;
    uint32_t domain = next_domain;
    if (!node.domain.empty()) domain = domains.emplace(node.domain, next_domain).first->second;
    if (domain == next_domain) next_domain++;
    const double inverse_weight = node.weight > 0 ? 1 / node.weight : std::numeric_limits<double>::infinity();
    candidates.push_back({SeedOf(node.id), inverse_weight, domain, i});
  }
  return candidates;
}

}  // namespace

std::string NodeId::ToHex() const { return cairnfs::ToHex(AsKey()); }

std::optional<NodeId> NodeId::FromKey(std::string_view key) {
  if (key.size() != kBytes) return std::nullopt;
  NodeId id;
  std::memcpy(id.bytes.data(), key.data(), kBytes);
  return id;
}

std::optional<NodeId> NodeId::FromHex(std::string_view hex) {
  std::string digits(hex);
  std::erase(digits, '-');
  const auto key = cairnfs::FromHex(digits);
  return key ? FromKey(*key) : std::nullopt;
}

size_t NodeIdHash::operator()(const NodeId& id) const { return SeedOf(id); }

View::View(std::vector<NodeInfo> all, uint64_t at)
    : nodes(Sorted(std::move(all))), revision(at), candidates(CandidatesOf(nodes)) {}

const NodeInfo* View::Find(const NodeId& id) const {
  auto found = std::lower_bound(nodes.begin(), nodes.end(), id,
                                [](const NodeInfo& node, const NodeId& wanted) { return node.id < wanted; });
  return found != nodes.end() && found->id == id ? &*found : nullptr;
}

const NodeInfo* View::FirstUp() const {
  auto found = std::find_if(nodes.begin(), nodes.end(), [](const auto& node) { return node.state == NodeState::kUp; });
  return found != nodes.end() ? &*found : nullptr;
}

}  // namespace cairnfs::cluster
