// What part a node has among the hosts with the names of a cluster.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cluster/types.h"
#include "kv/names_host.h"

namespace cairnfs::daemon {

using NamesHosts = std::vector<kv::NamesHost::Description>;  // what those hosts tell that answer

// Who has the latest register; null: nobody has one.
const kv::NamesHost::Description* LatestRegister(const NamesHosts& hosts);
// The name of a node (hex); where nobody knows it, the id.
std::string NameIn(const cluster::View& view, const std::string& node);
// Whether the node may leave the cluster as far as the names go. kInvalidArgument: it is the primary, the standby or
// the witness, and the message says what is to be done first. kUnavailable: who serves the names does not answer.
Status CheckHasNoPart(const NamesHosts& hosts, const cluster::View& view, const cluster::NodeInfo& node);

}  // namespace cairnfs::daemon
