// What the hosts of a cluster agree on, in the shared store: the filesystem, and settings that are the same everywhere.
// And `cairnfs cluster init` and `join`, which make it and write the configuration of a host.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "kv/shared_store.h"
#include "meta/namespace.h"

namespace cairnfs::daemon {

// Key `C` of the shared store.
struct ClusterSettings {
  uint32_t copies = 0, min_replicas = 0;  // as configured: 0 is as many as copies
  uint64_t lease_ms = 0, out_after_ms = 0;
  std::vector<std::string> trusted_network;
  std::string Encode() const;
  static Result<ClusterSettings> Decode(std::string_view value);
};

struct ClusterIdentity {
  meta::FilesystemHeader header;
  ClusterSettings settings;
};

// The namespace of a cluster; `store` outlives it.
std::unique_ptr<meta::Namespace> MakeSharedNamespace(kv::KvStore& store);

// kNotFound: there is no filesystem in the store.
Result<ClusterIdentity> ReadCluster(kv::KvStore& store);
// Makes the filesystem and the settings unless they are there; hosts that do so at once agree on one.
Result<ClusterIdentity> MakeOrReadCluster(kv::KvStore& store, const Config& config);
// kInvalidArgument: a key of the configuration that must be the same on every host is not what the others have.
Status CheckAgreement(const ClusterSettings& settings, const Config& config);
// Makes a data directory one of this filesystem, or finds that it is. kInvalidArgument: it belongs to another one, or
// is that of a host alone with files in it. `directory` is locked.
Status Adopt(DataDirectory& directory, const Config& config, const std::string& filesystem);

struct SetupOptions {
  Config config;     // as far as it was given
  std::string file;  // the configuration to write
  bool overwrite = false;
};
struct SetupResult {
  std::string filesystem;    // uuid
  std::string join_address;  // what `cairnfs cluster join` takes
  Config config;             // as written
};
// Makes a filesystem for several hosts, and writes the configuration of this one. Needs no daemon. kAlreadyExists:
// there is a filesystem, or a configuration.
Result<SetupResult> InitCluster(const SetupOptions& options);
// Asks the metadata at `address` ("etcd://...", "node:HOST:PORT" or HOST:PORT) for the settings, and writes the
// configuration of this host.
Result<SetupResult> JoinCluster(const SetupOptions& options, const std::string& address);

}  // namespace cairnfs::daemon
