// What the rooms above and below the cluster say about its nodes.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::cluster {

// A node is a data directory: its uuid. A directory that was wiped comes back as another node.
struct NodeId {
  static constexpr size_t kBytes = 16;
  std::array<std::byte, kBytes> bytes{};
  auto operator<=>(const NodeId&) const = default;
  std::string ToHex() const;
  std::string_view AsKey() const { return {reinterpret_cast<const char*>(bytes.data()), kBytes}; }
  static std::optional<NodeId> FromKey(std::string_view key);  // kBytes of them
  static std::optional<NodeId> FromHex(std::string_view hex);  // with or without dashes
};

struct NodeIdHash {
  size_t operator()(const NodeId& id) const;
};

enum class NodeState {
  kUp,    // has a session
  kDown,  // its session ended lately: skipped, and expected back
  kOut,   // down for longer than out_after: its copies are made anew elsewhere
};

struct NodeInfo {
  NodeId id;
  std::string name;     // for people: the host's name unless configured
  std::string address;  // HOST:PORT of its peer service
  std::string domain;   // failure domain; empty: the node is its own
  double weight = 1;    // its share of the chunks, in proportion; the capacity in TiB unless configured; 0: takes no
                        // new ones, and gives away those that it has. Finite and not negative.
  NodeState state = NodeState::kDown;
  uint64_t session = 0;   // revision that made its session key, 0 when it has none
  bool full = false;      // takes no new chunks at present
  uint64_t drain = 0;     // revision that says that it is to give away what it has, and has weight 0; 0: it is not
  bool is_empty = false;  // it is drained, and has nothing any more
  bool is_drained() const { return drain != 0; }
  bool takes_chunks() const { return state == NodeState::kUp && !full && weight > 0; }
};

// The nodes at one moment. Immutable; sorted by id.
class View {
 public:
  View() : View({}, 0) {}
  View(std::vector<NodeInfo> nodes, uint64_t revision);  // sorts them
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const NodeInfo* Find(const NodeId& id) const;  // null: not registered
  // One of those that are up, the same for all who see the same; for work that one of them is to do. Null: none is.
  const NodeInfo* FirstUp() const;

  const std::vector<NodeInfo> nodes;
  const uint64_t revision;  // of the store, up to which this is told

  // What placement reads of each node that is not out, in the order of ids: close together, because it reads all of
  // them for each digest.
  struct Candidate {
    uint64_t seed;          // of the node's hash
    double inverse_weight;  // infinite for weight 0
    uint32_t domain;        // nodes of one failure domain have the same number
    uint32_t node;          // index in `nodes`
  };
  const std::vector<Candidate> candidates;
};
using ViewPtr = std::shared_ptr<const View>;

}  // namespace cairnfs::cluster
