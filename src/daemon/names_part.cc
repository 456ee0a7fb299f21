#include "daemon/names_part.h"

#include <fmt/format.h>

#include <algorithm>

namespace cairnfs::daemon {

const kv::NamesHost::Description* LatestRegister(const NamesHosts& hosts) {
  const kv::NamesHost::Description* latest = nullptr;
  for (const kv::NamesHost::Description& host : hosts) {
    if (host.vote.value && (latest == nullptr || host.vote.accepted > latest->vote.accepted)) latest = &host;
  }
  return latest;
}

std::string NameIn(const cluster::View& view, const std::string& node) {
  const auto id = cluster::NodeId::FromHex(node);
  const cluster::NodeInfo* info = id ? view.Find(*id) : nullptr;
  return info == nullptr ? node : info->name;
}

Status CheckHasNoPart(const NamesHosts& hosts, const cluster::View& view, const cluster::NodeInfo& node) {
  const std::string id = node.id.ToHex();
  const auto serving = std::ranges::find_if(hosts, [](const auto& host) { return host.is_serving; });
  if (serving == hosts.end()) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("the host that serves the names does not answer, and {} may be one of the three that "
                                 "keep them: try again",
                                 node.name));
  }
  const auto* latest = LatestRegister(hosts);
  const bool has_standby = latest != nullptr && !latest->vote.value->IsAlone();
  if (id == serving->self.node) {
    const std::string standby = has_standby ? NameIn(view, latest->vote.value->StandbyMember().node) : "";
    return InvalidArgument(
        fmt::format("{} serves the names of this cluster: {}stop it, and call cairnfs metadata promote on {}",
                    node.name, has_standby ? "" : "give it a standby first, with cairnfs metadata standby there; then ",
                    has_standby ? standby + ", its standby" : "the standby"));
  }
  if (!has_standby || !latest->vote.value->HasVoter(id)) return {};
  const bool is_standby = id == latest->vote.value->StandbyMember().node;
  return InvalidArgument(
      fmt::format("{} is the {} of the names: call cairnfs metadata standby --none on {}, which "
                  "serves them, first",
                  node.name, is_standby ? "standby" : "witness", NameIn(view, serving->self.node)));
}

}  // namespace cairnfs::daemon
