// NodeTable: what the keys of membership say, kept up by a watch's events. One thread at a time.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "cluster/records.h"
#include "cluster/types.h"
#include "kv/shared_store.h"

namespace cairnfs::cluster {

class NodeTable {
 public:
  // Puts what was read of the whole range in place of what is known, also when that is older.
  void Reset(const kv::KvRange& range);
  // Events of whole revisions up to `revision`. Those that a Reset had seen already change nothing.
  void Apply(const std::vector<kv::KvEvent>& events, uint64_t revision);

  uint64_t revision() const { return revision_; }
  uint64_t SessionRevision(const NodeId& id) const;  // 0: none
  ViewPtr MakeView() const;

 private:
  struct Row {
    std::optional<NodeRecord> record;
    uint64_t session = 0;
    bool full = false;
    bool out = false;
    std::optional<DrainRecord> drain;
    uint64_t drain_revision = 0;
    bool IsEmpty() const { return !record && session == 0 && !full && !out && !drain; }
  };
  void Set(const std::string& key, const std::optional<std::string>& value, uint64_t revision);

  std::map<NodeId, Row> rows_;
  uint64_t revision_ = 0;
};

}  // namespace cairnfs::cluster
