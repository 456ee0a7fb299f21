// A host that was alone becomes the first of a cluster, with its files.
//
// Its names are copied into the shared store; its chunks stay where they are, and count as copies of this node. One
// step decides: where this host serves the names, that its `format` says so; where they lie elsewhere, the transaction
// that ends the load. A crash before it leaves the host alone, as it was; after it the cluster is there. Between that
// transaction and the change of `format`, the line `growing` in it names the store to be asked.
#pragma once

#include <optional>

#include "base/result.h"
#include "daemon/cluster_setup.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"

namespace cairnfs::daemon {

// Finds out from the store how a growing ended that was cut short, and makes it so: the directory is that of a host
// alone or of a cluster then. Does nothing where none was. kUnavailable: the store does not answer.
// `given` has the files for an etcd that asks for TLS.
Status SettleGrowth(DataDirectory& directory, const Config& given);

// For `cairnfs cluster init`, with the configuration that it is to write. nullopt: there is nothing to bring along: no
// data directory, one without files, or one that is another cluster's. Else the cluster, made of a host alone with
// files; or by an init before this one, with the same settings, which wrote no configuration (`is_written`). Where the
// names go elsewhere and nodes have certificates, a host alone is made first where there is none: so all that can be
// cut short is this.
Result<std::optional<ClusterIdentity>> BringAlong(const Config& config, bool is_written);

}  // namespace cairnfs::daemon
