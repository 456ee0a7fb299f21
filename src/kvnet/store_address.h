// Where the store that the hosts of a cluster share is, as a configuration says it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::kvnet {

struct StoreAddress {
  enum class Kind { kNode, kEtcd };

  Kind kind = Kind::kNode;
  std::vector<std::string> endpoints;  // HOST:PORT each; one or three of nodes, one or more of an etcd
  std::string prefix;                  // of the keys in an etcd; begins and ends with '/'
  // Of each endpoint that is a node's the id (hex) that its certificate has to name; empty: that of any node will do.
  std::vector<std::string> nodes{};

  // "node:HOST:PORT"; "node:" and three of these with commas between them, of which one serves the keys at a time; or
  // "etcd://HOST:PORT,HOST:PORT,...[/PREFIX]" (the prefix is /cairnfs/ if none is given). "ID@" may stand before the
  // HOST:PORT of a node.
  // kInvalidArgument says what is wrong and what would be right.
  static Result<StoreAddress> Parse(std::string_view text);
  // By how the text begins; nullopt: as none does. The rest of it may be wrong all the same.
  static std::optional<Kind> KindOf(std::string_view text);
  static constexpr size_t kNamesHosts = 3;
  // Whether it names hosts of which one serves the keys and another may be its standby.
  bool MayHaveStandby() const { return kind == Kind::kNode && endpoints.size() == kNamesHosts; }
  bool NamesNodes() const {
    return std::any_of(nodes.begin(), nodes.end(), [](const std::string& node) { return !node.empty(); });
  }
  // The text that names the node that serves the keys at HOST:PORT; any one where `node` is empty.
  static std::string TextOfNode(std::string_view host_port, std::string_view node = "");
  // That of an etcd. REQUIRES: the prefix begins with '/'.
  static std::string TextOfEtcd(const std::vector<std::string>& endpoints, std::string_view prefix);
};

}  // namespace cairnfs::kvnet
