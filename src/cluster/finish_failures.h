// The answer to FinishFiles as bytes: docs/formats/cluster.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/peers.h"

namespace cairnfs::cluster {

using FinishFailures = std::vector<PeerHandler::FinishFailure>;

// Those that fit, the last of which says how many more there are: who is told of some asks again about the others.
std::string EncodeFailures(const FinishFailures& failures);
std::optional<FinishFailures> DecodeFailures(std::string_view head);  // nullopt: it is none

}  // namespace cairnfs::cluster
