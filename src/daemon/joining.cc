#include "daemon/joining.h"

#include <fmt/format.h>

#include "cluster/node_table.h"
#include "daemon/size_text.h"

namespace cairnfs::daemon {
namespace {

Result<cluster::NodeId> ParseNode(const std::string& node) {
  const auto id = cluster::NodeId::FromHex(node);
  if (!id) return InvalidArgument("\"" + node + "\" is no id of a node");
  return *id;
}

// The transaction compares that the node is not up.
Status CommitUnlessUp(kv::KvStore& store, const std::string& node, const kv::Transaction& transaction) {
  const auto committed = store.Commit({}, transaction);
  if (committed.ok()) return {};
  if (committed.error().code != ErrorCode::kConflict) return committed.error();
  return MakeError(ErrorCode::kBusy, "node " + node + " is up: unmount it first, or give another data directory");
}

Error NotThatNode(const std::string& node, const kv::KvEntry& known) {
  const auto record = cluster::NodeRecord::Decode(known.value);
  const std::string name = record.ok() ? record->name : node;
  return MakeError(
      ErrorCode::kPermission,
      fmt::format("the data directory is that of node {} ({}), which is in the cluster, and DATA/tls has no key that "
                  "shows it: give an empty data directory, and to have the new node take its place call cairnfs node "
                  "replace {} there; or, to bring that node back with its chunks, take it out first, with cairnfs node "
                  "remove --lost {} on another host",
                  name, node, name, name));
}

}  // namespace

Status CheckAddressIsFree(kv::KvStore& store, const std::string& wanted, const std::string& own_id, uint64_t lease_ms) {
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange members,
                           store.Range({}, cluster::MembersBegin(), cluster::MembersEnd(), 0));
  cluster::NodeTable table;
  table.Reset(members);
  const cluster::ViewPtr view = table.MakeView();
  for (const cluster::NodeInfo& node : view->nodes) {
    if (node.address != wanted || node.state != cluster::NodeState::kUp || node.id.ToHex() == own_id) continue;
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is the address of node {} ({}), which is up: give this host's own with listen or advertise; if "
                    "this host was that node and lost its data, try again in {}, when that node counts as down",
                    wanted, node.name, node.id.ToHex(), FormatDurationMs(lease_ms)));
  }
  return {};
}

Status AllowBack(kv::KvStore& store, const std::string& node) {
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::NodeId id, ParseNode(node));
  kv::Transaction transaction;
  transaction.IfAbsent(cluster::SessionKey(id));
  return CommitUnlessUp(store, node, transaction.Delete(cluster::KeyOf(cluster::MemberKey::kRemoved, id)));
}

Status NoteJoined(kv::KvStore& store, const std::string& node, const cluster::NodeRecord& record,
                  admission::Identity identity) {
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::NodeId id, ParseNode(node));
  const std::string node_key = cluster::KeyOf(cluster::MemberKey::kNode, id);
  CAIRNFS_ASSIGN_OR_RETURN(const auto known, store.Get({}, node_key));
  if (known && identity == admission::Identity::kClaimed) return NotThatNode(node, *known);
  kv::Transaction transaction;
  transaction.IfAbsent(cluster::SessionKey(id)).IfRevision(node_key, known ? known->revision : 0);
  transaction.Delete(cluster::KeyOf(cluster::MemberKey::kRemoved, id));
  if (!known) transaction.Put(cluster::KeyOf(cluster::MemberKey::kJoined, id), record.Encode());
  return CommitUnlessUp(store, node, transaction);
}

}  // namespace cairnfs::daemon
