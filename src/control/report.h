// What the control service reports, as plain structs: the command line and the metrics know no protobuf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster_chunk_store.h"
#include "cluster/types.h"
#include "coherence/delegated_store.h"
#include "fs/filesystem.h"

namespace cairnfs::control {

// Constant for the life of a daemon.
struct DaemonInfo {
  std::string version, data, mount_point, uuid, log;
  uint64_t pid = 0;
  std::string dedup;  // "mount", "owner"
};

// How many copies there are to be, and how many suffice for a commit while nodes are missing.
struct ReplicasReport {
  uint32_t copies = 0, min_replicas = 0;  // 1 to copies
  bool IsLowered() const { return min_replicas < copies; }
};

// What a node of a cluster does for other nodes, and they for it.
struct ClusterActivityReport {
  cluster::ClusterChunkStats chunks{};
  coherence::DelegationStats names{};
  ReplicasReport replicas;
  uint64_t nodes_up = 0, nodes_down = 0, nodes_out = 0;
  bool session_holds = false;
};

// The chunks on this host that files need, and those that the next collection frees, as of one moment.
struct LiveReport {
  store::LiveTotals totals;
  uint64_t counted_seconds_ago = 0;
};

struct StatusReport {
  DaemonInfo daemon;
  uint64_t uptime_seconds = 0;
  fs::FsStatus fs{};
  uint64_t available_bytes = 0;
  uint64_t metadata_bytes = 0;
  double write_bytes_per_second = 0, read_bytes_per_second = 0;
  std::optional<LiveReport> live;                // nullopt: not counted since the daemon's start; in a cluster
  std::optional<ClusterActivityReport> cluster;  // nullopt: this host is alone
  std::vector<std::string> failures;             // of commits, the newest first; where a client asks
  std::vector<fs::MetadataOwner> owners;         // of the metadata, the largest first; where a client asks

  uint64_t OnDiskBytes() const {
    return fs.store.segment_bytes - std::min(fs.store.segment_bytes, fs.store.free_segment_bytes) + metadata_bytes;
  }
};

// What a node tells the others about itself every now and then.
struct NodeUsage {
  uint64_t session_began_seconds = 0;  // by its wall clock, since 1970
  uint64_t session_age_seconds = 0;    // as the one who reports works it out
  uint64_t total_bytes = 0, available_bytes = 0, stored_bytes = 0;
  uint64_t missing_copies = 0, unacknowledged_bytes = 0;
  std::string repair_phase;
  uint64_t repair_chunks_left = 0;
  double repair_bytes_per_second = 0, repair_chunks_per_second = 0;
};

struct NodeReport {
  cluster::NodeInfo info;
  bool is_self = false;
  std::optional<NodeUsage> usage;  // nullopt while the node is not up
};

const char* StateName(cluster::NodeState state);  // up, down, out

struct ClusterReport {
  std::string filesystem;  // uuid, 32 hex digits
  std::string metadata;
  ReplicasReport replicas;
  std::string session;  // empty: good
  std::vector<NodeReport> nodes;
};

// A remount: the words of -o, in their order, and the configuration that is read before them (empty: none); paths in
// them are taken from `directory`.
struct RemountCall {
  std::vector<std::string> options;
  std::string config;
  std::string directory;
};
// The state that a remount asks of the kernel.
struct RemountReport {
  bool read_only = false;
};

// A node that was taken out of the cluster.
struct ForgottenNode {
  std::string id, name;
};

using GcReport = fs::CollectionStatus;

using CheckReport = fs::CheckReport;
using CheckState = fs::CheckProgress;

}  // namespace cairnfs::control
