#include "daemon/names_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "daemon/cluster_config.h"
#include "daemon/names_part.h"
#include "daemon/promotion.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

constexpr std::chrono::seconds kStandbyWait{30};

// The host among the three with that node.
const kv::NamesHost::Description* FindHost(const std::vector<kv::NamesHost::Description>& hosts,
                                           const std::string& node) {
  const auto found =
      std::ranges::find_if(hosts, [&](const kv::NamesHost::Description& host) { return host.self.node == node; });
  return found == hosts.end() ? nullptr : &*found;
}

const char* StateText(kv::Register::Standby state) {
  using Standby = kv::Register::Standby;
  switch (state) {
    case Standby::kNone: return "none";
    case Standby::kCopying: return "copying";
    case Standby::kWhole: return "whole";
    case Standby::kDetached: break;
  }
  return "detached";
}

}  // namespace

std::string NamesOperations::NameOf(const std::string& node) const { return NameIn(*at_.membership.view(), node); }

Result<kv::NamesHost*> NamesOperations::Host() const {
  if (kv::NamesHost* host = at_.store.names_host()) return host;
  return InvalidArgument(
      "this host is none of those among which the names lie: that takes three hosts, with metadata = "
      "\"node:HOST:PORT,HOST:PORT,HOST:PORT\" on all hosts and serve_metadata on these three");
}

Result<control::NodeReply> NamesOperations::SetStandby(const Context& context,
                                                       const control::SetStandbyRequest& request) const {
  CAIRNFS_ASSIGN_OR_RETURN(kv::NamesHost * host, Host());
  const Context limited = context.WithTimeout(kStandbyWait);
  if (request.none()) {
    CAIRNFS_RETURN_IF_ERROR(host->DropStandby(limited));
    return ReplyOf(at_.membership.self(), NameOf(at_.membership.self().ToHex()));
  }
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::NodeInfo node,
                           at_.nodes.Find(request.node(), NodeOperations::Among::kOthers));
  const std::vector<kv::NamesHost::Description> hosts = at_.store.DescribeHosts(limited);
  if (hosts.size() != kvnet::StoreAddress::kNamesHosts) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("only {} of the three hosts in metadata answer: mount all three, with serve_metadata",
                                 hosts.size()));
  }
  const auto* standby = FindHost(hosts, node.id.ToHex());
  if (standby == nullptr || FindHost(hosts, at_.membership.self().ToHex()) == nullptr) {
    return InvalidArgument(
        fmt::format("{} is none of the three hosts in metadata, of which each has serve_metadata", node.name));
  }
  const auto witness = std::ranges::find_if(
      hosts, [&](const auto& one) { return &one != standby && one.self.node != at_.membership.self().ToHex(); });
  if (witness == hosts.end() || witness->self.node == standby->self.node) {
    return InvalidArgument("two of the addresses in metadata are of one host: three hosts are needed");
  }
  CAIRNFS_RETURN_IF_ERROR(host->SetStandby(limited, standby->self, witness->self));
  return ReplyOf(node.id, node.name);
}

Result<control::PromoteReply> NamesOperations::Promote(const Context& context,
                                                       const control::PromoteRequest& request) const {
  CAIRNFS_ASSIGN_OR_RETURN(kv::NamesHost * host, Host());
  CAIRNFS_ASSIGN_OR_RETURN(const kv::NamesHost::Promotion promotion,
                           host->Promote(context.WithTimeout(kStandbyWait), request.lose()));
  return ReplyOf(promotion);
}

std::optional<control::NamesHosts> NamesOperations::Report(const Context& context) const {
  if (!MayHaveStandby(at_.config)) return std::nullopt;
  const std::vector<kv::NamesHost::Description> hosts = at_.store.DescribeHosts(context);
  const kv::NamesHost::Description *serving = nullptr, *latest = LatestRegister(hosts);
  for (const kv::NamesHost::Description& host : hosts) {
    if (host.is_serving) serving = &host;
  }
  control::NamesHosts names;
  names.set_state(StateText(kv::Register::Standby::kNone));
  if (serving != nullptr) names.set_primary(NameOf(serving->self.node));
  if (latest == nullptr || latest->vote.value->IsAlone()) return names;
  const kv::Register& value = *latest->vote.value;
  names.set_standby(NameOf(value.StandbyMember().node));
  names.set_witness(NameOf(value.Witness().node));
  names.set_state(StateText(value.state));
  if (value.state == kv::Register::Standby::kDetached) {
    const int64_t seconds = Clock::WallTime().seconds - value.detached_seconds;
    names.set_detached_seconds_ago(static_cast<uint64_t>(std::max<int64_t>(seconds, 0)));
  }
  const uint64_t ahead = serving != nullptr ? serving->position.revision : value.detached_revision;
  for (const kv::NamesHost::Description& host : hosts) {
    if (host.self.node != value.StandbyMember().node) continue;
    names.set_behind_revisions(ahead - std::min(ahead, host.position.revision));
  }
  return names;
}

}  // namespace cairnfs::daemon
