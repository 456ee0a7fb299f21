// Nodes and digests for the tests of placement. Seeds are fixed: what fails once fails always.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cluster/placement.h"

namespace cairnfs::cluster {

class Source {
 public:
  explicit Source(uint64_t seed) : random_(seed) {}
  Digest NextDigest() {
    Digest digest;
    Fill(digest.bytes);
    return digest;
  }
  NodeId NextId() {
    NodeId id;
    Fill(id.bytes);
    return id;
  }

 private:
  template <size_t N>
  void Fill(std::array<std::byte, N>& bytes) {
    for (size_t i = 0; i < N; i += sizeof(uint64_t)) {
      const uint64_t word = random_();
      std::memcpy(bytes.data() + i, &word, sizeof word);
    }
  }
  std::mt19937_64 random_;
};

inline NodeInfo Node(const NodeId& id, double weight = 1, std::string domain = "") {
  NodeInfo node;
  node.id = id;
  node.weight = weight;
  node.domain = std::move(domain);
  node.state = NodeState::kUp;
  return node;
}

// Weights 1, 2, 4 and 8 in turn; no domains.
inline std::vector<NodeInfo> MixedNodes(size_t count, Source& source) {
  std::vector<NodeInfo> nodes;
  for (size_t i = 0; i < count; i++) nodes.push_back(Node(source.NextId(), 1 << i % 4));
  return nodes;
}

inline std::set<NodeId> Ids(const std::vector<const NodeInfo*>& nodes) {
  std::set<NodeId> ids;
  for (const NodeInfo* node : nodes) ids.insert(node->id);
  return ids;
}

// Where a save brings a new chunk: the writer, if it takes chunks or is down, and others beside it.
inline std::vector<const NodeInfo*> Targets(const View& view, const Digest& digest, const NodeInfo* writer,
                                            size_t copies) {
  if (copies == 0) return {};
  std::vector<const NodeInfo*> targets;
  if (writer != nullptr && writer->weight > 0 && !writer->full) targets.push_back(writer);
  const std::vector<const NodeInfo*> more = MoreTargets(view, digest, targets, copies - targets.size());
  targets.insert(targets.end(), more.begin(), more.end());
  return targets;
}

}  // namespace cairnfs::cluster
