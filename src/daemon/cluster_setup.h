// What the hosts of a cluster agree on, in the shared store: the filesystem, and settings that are the same everywhere.
// And `cairnfs cluster init` and `join`, which make it and write the configuration of a host.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/cluster_settings.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "kv/shared_store.h"
#include "meta/namespace.h"

namespace cairnfs::daemon {

class ClusterStore;

struct ClusterIdentity {
  meta::FilesystemHeader header;
  ClusterSettings settings;
  uint64_t settings_revision = 0;
  bool settings_were_changed = false;  // since the filesystem was made, which is after they were written first
};

// Explains the failure of a first read of the metadata, and says what would be right. kInvalidArgument: a server
// answers there, and serves no metadata.
Error ExplainUnreachable(const Error& error, const Config& config);

// The namespace of a cluster; `store` outlives it.
std::unique_ptr<meta::Namespace> MakeSharedNamespace(kv::KvStore& store);

// kNotFound: there is no filesystem in the store.
Result<ClusterIdentity> ReadCluster(kv::KvStore& store);
// kAlreadyExists: there is one.
Status CheckStoreIsFree(kv::KvStore& store, const Config& config);
// Makes the filesystem, with these settings, unless it is there. Hosts that do so at once agree on one filesystem, with
// the settings of one of them.
Result<ClusterIdentity> MakeOrReadCluster(kv::KvStore& store, const Config& config);
// For a filesystem that is to be made. kInvalidArgument: the keys of another cluster lie below its prefix in the etcd,
// or its own would lie below the other's.
Status CheckPrefix(ClusterStore& store, const Config& config);
// Makes a data directory one of this filesystem, or finds that it is. kInvalidArgument: it belongs to another one, or
// is that of a host alone with files in it. `directory` is locked.
Status Adopt(DataDirectory& directory, const Config& config, const std::string& filesystem);

// Makes the directory one of the filesystem, as Adopt does, and whole.
Status MakeNode(DataDirectory& directory, const Config& config, const std::string& filesystem);

struct SetupOptions {
  Config config;     // as far as it was given
  std::string file;  // the configuration to write
  bool overwrite = false;
  std::string authority_out;  // of init: the file for the authority's key, which is to be kept offline; empty: here
};
struct SetupResult {
  std::string filesystem;    // uuid
  std::string join_address;  // what `cairnfs cluster join` takes
  Config config;             // as written
};
// Makes a filesystem for several hosts, and writes the configuration of this one. Where the data directory is that of a
// host alone and holds files, they become those of the cluster (grow.h). Needs no daemon. kAlreadyExists: there is a
// filesystem, or a configuration, or the data directory belongs to a filesystem. After that, and after
// kInvalidArgument, nothing has changed. After any other error the same call may be made again.
Result<SetupResult> InitCluster(const SetupOptions& options);
// Learns the settings of a cluster, and writes the configuration of this host. With a token: from the host that lets
// others join at `address` (HOST:PORT), which also gives this one its certificate; the data directory is made for that.
// Without: from the metadata at `address` ("etcd://...", "node:HOST:PORT" or HOST:PORT), of a cluster that trusts
// networks.
Result<SetupResult> JoinCluster(const SetupOptions& options, const std::string& address, const std::string& token = "");

}  // namespace cairnfs::daemon
