// The keys of delegations and of their recalls: docs/formats/cluster.md.
#pragma once

#include <string>

#include "base/types.h"
#include "cluster/membership.h"

namespace cairnfs::coherence {

std::string DelegationKey(InodeId directory, const cluster::NodeId& holder);
std::string DelegationPrefix(InodeId directory);
std::string RecallKey(const cluster::NodeId& holder, InodeId directory);
std::string RecallPrefix(const cluster::NodeId& holder);

}  // namespace cairnfs::coherence
