// Checks of the configuration of a cluster's host, and values that follow from it.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/config.h"

namespace cairnfs::daemon {

// kInvalidArgument: the keys of the configuration contradict each other, or would open the node to a network that
// nobody called trusted. The message names the keys and says what would be right. Good for a host alone, too.
Status CheckCluster(const Config& config);

// Whether `url` can be a value of `metadata`. kInvalidArgument says what is wrong, without the key's name. REQUIRES: it
// is not empty.
Status CheckMetadata(const std::string& url);
// The `metadata` that `cluster join ADDRESS` means: ADDRESS, if it is one, or else "node:" before it. kInvalidArgument
// says what ADDRESS may be.
Result<std::string> MetadataOfAddress(const std::string& address);
// Where this host finds the shared metadata: `metadata`, or, where only `serve_metadata` is set, the node itself.
// REQUIRES (unchecked): one of them is set.
std::string MetadataUrl(const Config& config);
// Whether `metadata` names three hosts, of which one serves the names and another may be its standby.
bool MayHaveStandby(const Config& config);
// The address that other nodes use. REQUIRES (unchecked): the host is in a cluster, or about to join one.
std::string AdvertisedAddress(const Config& config);
// `node_name`, or the host's name.
std::string NodeName(const Config& config);
// The number that `min_replicas` stands for: itself, or `copies` when it is 0.
unsigned MinReplicas(const Config& config);

}  // namespace cairnfs::daemon
