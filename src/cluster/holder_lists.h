// Who holds a chunk, as far as this node was told: key `H` + digest in its own engine. docs/formats/cluster.md.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/types.h"
#include "kv/engine.h"

namespace cairnfs::cluster {

using Holders = std::vector<NodeId>;

// Those that the view knows.
std::vector<const NodeInfo*> FindAll(const View& view, const Holders& holders);
inline bool Contains(const Holders& holders, const NodeId& node) {
  return std::find(holders.begin(), holders.end(), node) != holders.end();
}

inline constexpr char kHolderPrefix = 'H';
std::string HolderKey(const Digest& digest);
std::optional<Digest> ParseHolderKey(std::string_view key);
std::string EncodeHolders(const Holders& holders);
Result<Holders> DecodeHolders(std::string_view value);  // kCorrupt

// Nullopt: nothing is known. kCorrupt and what the engine says.
Result<std::optional<Holders>> ReadHolders(kv::KvEngine& engine, const Digest& digest);
// Up to `limit` lists in the order of digests, from the first after `after` (nullopt: from the start). Those that do
// not decode are left out.
struct HolderEntry {
  Digest digest;
  Holders holders;
};
Result<std::vector<HolderEntry>> ScanHolders(kv::KvEngine& engine, const std::optional<Digest>& after, size_t limit);

// Visits the digest of each list.
Status VisitHolders(kv::KvEngine& engine, const std::function<void(const Digest&)>& visit);

}  // namespace cairnfs::cluster
