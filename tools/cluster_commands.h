// `cairnfs cluster ...` and `cairnfs node ...`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "locate.h"

namespace cairnfs::tools {

// Values that init and join write into the configuration of this host. Empty: the default.
struct ClusterHostOptions {
  std::string config, data, mount_point, listen, advertise, name, domain;
  bool force = false;                            // overwrites a configuration
  bool i_know = false;                           // trusts a network that is not private
  std::string tls_ca, tls_certificate, tls_key;  // files, for an etcd
};
struct ClusterInitCommand {
  ClusterHostOptions host;
  std::vector<std::string> trusted_networks;  // empty: nodes have certificates
  std::string metadata, serve_metadata;       // at most one of them
  std::string serve_join, authority_out;
  uint64_t copies = 2;
  uint64_t min_replicas = 0;     // 0: as many as copies
  std::string lease, out_after;  // empty: the default
  std::string dedup;             // empty: "mount"
};
struct ClusterJoinCommand {
  ClusterHostOptions host;
  std::string address;
  std::string token;  // "-": a line of the standard input; empty: the cluster trusts networks
};

int RunClusterInit(const ClusterInitCommand& command);
int RunClusterJoin(const ClusterJoinCommand& command);
// `life`: a duration as in the configuration.
int RunClusterToken(const Target& target, const std::string& life, bool json);
struct ClusterIssuerCommand {
  std::string authority;  // the file with its key
  std::string data;       // empty: the default
};
int RunClusterIssuer(const ClusterIssuerCommand& command);
int RunClusterStatus(const Target& target, bool json);
// `number` as it was typed: 1 to copies, or "default" for all of them.
int RunSetMinReplicas(const Target& target, const std::string& number, bool json);
int RunNodeList(const Target& target, bool json);
struct NodeDrainCommand {
  Target target;
  std::string node;
  bool cancel = false, no_wait = false, json = false;
};
int RunNodeDrain(const NodeDrainCommand& command);
struct NodeRemoveCommand {
  Target target;
  std::string node;
  bool lost = false, json = false;
};
int RunNodeRemove(const NodeRemoveCommand& command);
struct NodeReplaceCommand {
  Target target;
  std::string node;
  bool lost = false, take_name = false, json = false;
};
int RunNodeReplace(const NodeReplaceCommand& command);
struct ClusterWaitCommand {
  Target target;
  uint64_t nodes = 0;
  std::string timeout = "10min";
};
int RunClusterWait(const ClusterWaitCommand& command);

}  // namespace cairnfs::tools
