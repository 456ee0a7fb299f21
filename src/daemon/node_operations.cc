#include "daemon/node_operations.h"

#include <fmt/format.h>

#include <vector>

#include "base/failpoint.h"
#include "base/log.h"
#include "cluster/records.h"
#include "daemon/cluster_config.h"
#include "daemon/size_text.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

Failpoint node_replacing("node.replacing", Failpoint::Kind::kKill);
Failpoint node_replaced("node.replaced", Failpoint::Kind::kKill);

constexpr size_t kIdPrefixMin = 4;  // digits: with fewer, a slip of the fingers could name a node

bool IsMeant(const std::string& node, const std::string& name, const cluster::NodeId& id) {
  return name == node || (node.size() >= kIdPrefixMin && id.ToHex().starts_with(node));
}

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

}  // namespace

control::NodeReply ReplyOf(const cluster::NodeId& id, const std::string& name) {
  control::NodeReply reply;
  reply.set_id(id.ToHex());
  reply.set_name(name);
  return reply;
}

Result<cluster::NodeInfo> NodeOperations::Find(const std::string& node, Among among) const {
  std::vector<cluster::NodeInfo> found;
  const auto view = at_.membership.view();
  for (const cluster::NodeInfo& info : view->nodes) {
    if (among == Among::kOthers && info.id == at_.membership.self()) continue;
    if (IsMeant(node, info.name, info.id)) found.push_back(info);
  }
  if (among == Among::kAllAndJoined) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto joined, cluster::ReadJoined({}, at_.store));
    for (const cluster::NodeInfo& one : joined) {
      if (view->Find(one.id) == nullptr && IsMeant(node, one.name, one.id)) found.push_back(one);
    }
  }
  if (found.empty()) return MakeError(ErrorCode::kNotFound, fmt::format("there is no node '{}'", node));
  if (found.size() == 1) return found.front();
  std::string ids;
  for (const cluster::NodeInfo& info : found) ids += (ids.empty() ? "" : ", ") + info.id.ToHex();
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("'{}' may be several nodes: give the id of one of them: {}", node, ids));
}

// Whether the node is none of three hosts with the names.
Status NodeOperations::CheckNamesStay(const Context& context, const cluster::NodeInfo& node) const {
  if (!MayHaveStandby(at_.config)) return {};
  return CheckHasNoPart(at_.names_hosts(context), *at_.membership.view(), node);
}

// Whether the other nodes can take what this one has.
Status NodeOperations::CheckDrain(const Context& context, const cluster::NodeInfo& node) const {
  const control::ClusterReply report = at_.report(context);
  if (!report.session().empty()) return MakeError(ErrorCode::kUnavailable, report.session());
  uint64_t left = 0, available = 0, stored = 0;
  for (const control::Node& other : report.nodes()) {
    if (other.id() == node.id.ToHex()) stored = other.usage().stored_bytes();
    if (other.id() == node.id.ToHex() || other.weight() == 0 || !other.has_usage()) continue;
    ++left;
    available += other.usage().available_bytes();
  }
  if (left < at_.config.copies) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("without {} there are {} nodes that take chunks, and {} copies need as many: add a node", node.name,
                    left, at_.config.copies));
  }
  if (available >= stored) return {};
  return MakeError(ErrorCode::kNoSpace,
                   fmt::format("{} has {}, and the other nodes have room for {}: add room or a node", node.name,
                               FormatSize(stored), FormatSize(available)));
}

Result<control::NodeReply> NodeOperations::Drain(const Context& context,
                                                 const control::DrainNodeRequest& request) const {
  using cluster::Membership;
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::NodeInfo node, Find(request.node()));
  if (!request.cancel() && !node.is_drained()) {
    CAIRNFS_RETURN_IF_ERROR(CheckNamesStay(context, node));
    CAIRNFS_RETURN_IF_ERROR(CheckDrain(context, node));
  }
  const auto drain = request.cancel() ? Membership::Drain::kCancel : Membership::Drain::kBegin;
  CAIRNFS_RETURN_IF_ERROR(at_.membership.SetDrain(node.id, drain));
  return ReplyOf(node.id, node.name);
}

Result<control::NodeReply> NodeOperations::Remove(const Context& context,
                                                  const control::RemoveNodeRequest& request) const {
  using Removal = cluster::Membership::Removal;
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::NodeInfo node, Find(request.node(), Among::kAllAndJoined));
  CAIRNFS_RETURN_IF_ERROR(CheckNamesStay(context, node));
  CAIRNFS_RETURN_IF_ERROR(at_.membership.Remove(node.id, request.lost() ? Removal::kLost : Removal::kDrained));
  return ReplyOf(node.id, node.name);
}

// Whether what it alone may have can be given up, and the host that serves the names is another one.
Status NodeOperations::CheckReplacement(const cluster::NodeInfo& old,
                                        const control::ReplaceNodeRequest& request) const {
  if (request.take_name() && !at_.config.node_name.empty() && at_.config.node_name != old.name) {
    return InvalidArgument(
        fmt::format("node_name = \"{}\" in the configuration of this host: leave --take-name out, "
                    "or take node_name out and mount anew",
                    at_.config.node_name));
  }
  const auto view = at_.membership.view();
  std::string away;  // beside it
  size_t away_count = 0;
  const auto store = kvnet::StoreAddress::Parse(MetadataUrl(at_.config));
  // Of three hosts that may serve them it is one that is up.
  bool serves_names = at_.config.serve_metadata.empty() && store.ok() &&
                      store->kind == kvnet::StoreAddress::Kind::kNode && !store->MayHaveStandby() &&
                      HostOf(store->endpoints.front()) == HostOf(old.address);
  for (const cluster::NodeInfo& node : view->nodes) {
    if (node.id == old.id) continue;
    const bool is_up = node.state == cluster::NodeState::kUp;
    if (is_up && HostOf(node.address) == HostOf(old.address)) serves_names = false;  // that node does
    if (is_up || node.is_empty) continue;
    away += (away_count++ == 0 ? "" : ", ") + node.name;
  }
  if (serves_names) {
    return InvalidArgument(
        fmt::format("{} is the host that serves the names of this cluster: bring them to the new disk first, with "
                    "cairnfs metadata load and cairnfs cluster init there",
                    old.name));
  }
  if (request.lost() || old.is_empty) return {};
  std::string why;
  if (at_.config.copies == 1) {
    why = "with copies = 1";
  } else if (at_.may_lack_copies()) {
    why = "min_replicas is lowered, or was";
  } else if (away_count + 1 >= at_.config.copies) {
    why = fmt::format("{} {} not up either", away, away_count == 1 ? "is" : "are");
  }
  if (why.empty()) return {};
  return InvalidArgument(
      fmt::format("{} may have the only copies of something: {}. Bring it, or what else is away, back first; if its "
                  "disk is lost, cairnfs node replace --lost",
                  old.name, why));
}

Result<control::NodeReply> NodeOperations::Replace(const Context& context,
                                                   const control::ReplaceNodeRequest& request) const {
  using Name = cluster::Membership::PlaceName;
  const auto old = Find(request.node(), Among::kOthers);
  if (!old.ok() && old.error().code == ErrorCode::kNotFound) {
    const std::string key = cluster::KeyOf(cluster::MemberKey::kPlace, at_.membership.self());
    CAIRNFS_ASSIGN_OR_RETURN(const auto stored, at_.store.Get(context, key));
    const auto place = stored ? cluster::PlaceRecord::Decode(stored->value) : old.error();
    if (place.ok() && IsMeant(request.node(), place->name, place->of)) return ReplyOf(place->of, place->name);
    if (Find(request.node()).ok()) {
      return InvalidArgument(
          fmt::format("'{}' is this host's own node: name the one whose place it is to take", request.node()));
    }
  }
  if (!old.ok()) return old.error();
  if (old->state == cluster::NodeState::kUp) {
    return MakeError(ErrorCode::kBusy,
                     fmt::format("{} is up: stop it first, or take it out with cairnfs node drain", old->name));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckNamesStay(context, *old));
  CAIRNFS_RETURN_IF_ERROR(CheckReplacement(*old, request));
  node_replacing.Pass();
  CAIRNFS_RETURN_IF_ERROR(at_.membership.Replace(old->id, request.take_name() ? Name::kTaken : Name::kKept));
  node_replaced.Pass();
  spdlog::info("this node takes the place of {} ({})", old->name, old->id.ToHex());
  return ReplyOf(old->id, old->name);
}

}  // namespace cairnfs::daemon
