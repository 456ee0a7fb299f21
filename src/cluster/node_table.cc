#include "cluster/node_table.h"

#include <algorithm>

#include "base/log.h"

namespace cairnfs::cluster {
namespace {

std::optional<NodeRecord> DecodeOrWarn(const NodeId& id, std::string_view value) {
  Result<NodeRecord> record = NodeRecord::Decode(value);
  if (record.ok()) return std::move(*record);
  spdlog::warn("node {} is left out of the cluster's view: {}", id.ToHex(), record.error().message);
  return std::nullopt;
}

// One that does not decode is of a node that has not given everything away.
std::optional<DrainRecord> DrainOf(const std::optional<std::string>& value) {
  if (!value) return std::nullopt;
  const auto drain = DrainRecord::Decode(*value);
  return drain.ok() ? *drain : DrainRecord();
}

}  // namespace

void NodeTable::Reset(const kv::KvRange& range) {
  rows_.clear();
  for (const kv::KvEntry& entry : range.entries) Set(entry.key, entry.value, entry.revision);
  revision_ = range.revision;
}

void NodeTable::Apply(const std::vector<kv::KvEvent>& events, uint64_t revision) {
  for (const kv::KvEvent& event : events) {
    if (event.revision > revision_) Set(event.key, event.value, event.revision);
  }
  revision_ = std::max(revision_, revision);
}

void NodeTable::Set(const std::string& key, const std::optional<std::string>& value, uint64_t revision) {
  const auto parsed = ParseMemberKey(key);
  if (!parsed) return;  // of a later version
  Row& row = rows_[parsed->id];
  switch (parsed->kind) {
    case MemberKey::kNode: row.record = value ? DecodeOrWarn(parsed->id, *value) : std::nullopt; break;
    case MemberKey::kSession: row.session = value ? revision : 0; break;
    case MemberKey::kFull: row.full = value.has_value(); break;
    case MemberKey::kOut: row.out = value.has_value(); break;
    case MemberKey::kRemoved:  // who may not come, and not who is here
    case MemberKey::kJoined:   // who may, and was never here
    case MemberKey::kPlace:    // its own node record says what follows from it
      break;
    case MemberKey::kDrain:
      row.drain = DrainOf(value);
      row.drain_revision = value ? revision : 0;
      break;
  }
  if (row.IsEmpty()) rows_.erase(parsed->id);
}

uint64_t NodeTable::SessionRevision(const NodeId& id) const {
  auto found = rows_.find(id);
  return found == rows_.end() ? 0 : found->second.session;
}

ViewPtr NodeTable::MakeView() const {
  std::vector<NodeInfo> nodes;
  nodes.reserve(rows_.size());
  for (const auto& [id, row] : rows_) {
    if (!row.record) continue;
    NodeInfo node;
    node.id = id;
    node.name = row.record->name;
    node.address = row.record->address;
    node.domain = row.record->domain;
    node.weight = row.drain ? 0 : row.record->weight;
    node.drain = row.drain_revision;
    node.is_empty = row.drain && row.drain->is_empty;
    node.session = row.session;
    node.full = row.full;
    node.state = row.session != 0 ? NodeState::kUp : row.out ? NodeState::kOut : NodeState::kDown;
    nodes.push_back(std::move(node));
  }
  return std::make_shared<const View>(std::move(nodes), revision_);
}

}  // namespace cairnfs::cluster
