#include "control/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <initializer_list>
#include <utility>
#include <vector>

namespace cairnfs::control {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Everybody who reaches the address reads the metrics. Small steps would tell a writer whether its bytes were there
// already. So values that depend on it are rounded down to whole units of these (docs/security.md).
constexpr uint64_t kToldBytes = 64 * kMiB;
constexpr uint64_t kToldChunks = 64;

void RoundDown(std::initializer_list<uint64_t*> values, uint64_t unit) {
  for (uint64_t* value : values) *value = AlignDown(*value, unit);
}

// Rounds all values that depend on it: new bytes take room, go to the disk and to other nodes, and are then read from
// the cache.
void RoundWhatTells(StatusReport& report) {
  store::StoreStats& store = report.fs.store;
  RoundDown({&store.unique_bytes, &store.segment_bytes, &store.free_segment_bytes, &store.dead_bytes,
             &store.new_bytes_total, &store.known_bytes_total, &store.disk_read_bytes_total,
             &store.disk_write_bytes_total, &report.fs.dirty_bytes, &report.metadata_bytes, &report.available_bytes},
            kToldBytes);
  RoundDown({&store.chunk_count, &store.cache_hits_total, &store.cache_misses_total}, kToldChunks);
  if (report.live) {
    RoundDown({&report.live->totals.live_bytes, &report.live->totals.unreferenced_bytes}, kToldBytes);
  }
  if (!report.cluster) return;
  cluster::ClusterChunkStats& chunks = report.cluster->chunks;
  RoundDown({&chunks.sent_bytes_total, &chunks.received_bytes_total, &chunks.wire_sent_bytes_total,
             &chunks.wire_received_bytes_total, &chunks.new_in_cluster_bytes_total,
             &chunks.known_in_cluster_bytes_total, &chunks.unacknowledged_bytes, &chunks.remote_read_bytes_total},
            kToldBytes);
  RoundDown({&chunks.remote_reads_total}, kToldChunks);
}

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(std::function<StatusReport()> report) : report_(std::move(report)) {}

  std::vector<MetricFamily> Collect() const override {
    StatusReport report = report_();
    if (report.daemon.dedup != "owner") RoundWhatTells(report);
    std::vector<MetricFamily> families;
    AddGauges(report, families);
    AddCounters(report, families);
    if (report.cluster) AddCluster(*report.cluster, families);
    return families;
  }

 private:
  static void AddGauges(const StatusReport& report, std::vector<MetricFamily>& families) {
    const store::StoreStats& store = report.fs.store;
    auto gauge = [&](const char* name, const char* help, double value) {
      ClientMetric metric;
      metric.gauge.value = value;
      families.push_back({name, help, MetricType::Gauge, {metric}});
    };
    gauge("cairnfs_logical_bytes", "Sum of file sizes without holes.", static_cast<double>(report.fs.logical_bytes));
    gauge("cairnfs_unique_bytes", "Sum of the lengths of distinct chunks.", static_cast<double>(store.unique_bytes));
    if (report.live) {
      gauge("cairnfs_live_bytes", "Lengths of the chunks that files need, as of the last count or collection.",
            static_cast<double>(report.live->totals.live_bytes));
      gauge("cairnfs_unreferenced_bytes", "Lengths of those that nothing names, as of then.",
            static_cast<double>(report.live->totals.unreferenced_bytes));
      gauge("cairnfs_counted_seconds_ago", "How long ago that was.",
            static_cast<double>(report.live->counted_seconds_ago));
    }
    gauge("cairnfs_on_disk_bytes", "Disk taken by segments with data and metadata.",
          static_cast<double>(report.OnDiskBytes()));
    gauge("cairnfs_free_segment_bytes", "Disk kept in freed segments for reuse.",
          static_cast<double>(store.free_segment_bytes));
    gauge("cairnfs_dead_bytes", "Bytes in segments that no chunk needs.", static_cast<double>(store.dead_bytes));
    gauge("cairnfs_available_bytes", "New bytes that still fit.", static_cast<double>(report.available_bytes));
    gauge("cairnfs_inodes", "Files, directories, symbolic links and special files.",
          static_cast<double>(report.fs.inode_count));
    gauge("cairnfs_chunks", "Distinct chunks.", static_cast<double>(store.chunk_count));
    gauge("cairnfs_dirty_bytes", "Bytes written and not durable yet.", static_cast<double>(report.fs.dirty_bytes));
    gauge("cairnfs_open_files", "Open file descriptions.", static_cast<double>(report.fs.open_files));
    gauge("cairnfs_pool_buffers", "Buffers of the pool.", static_cast<double>(report.fs.pool_buffers));
    gauge("cairnfs_pool_buffers_free", "Buffers of the pool that are free.",
          static_cast<double>(report.fs.pool_buffers_free));
    gauge("cairnfs_pool_buffers_touched", "Buffers of the pool that take memory.",
          static_cast<double>(report.fs.pool_buffers_touched));
    gauge("cairnfs_collecting", "1 while a collection runs.", report.fs.collecting ? 1 : 0);
    gauge("cairnfs_collection_failed", "1 when the last collection failed.", report.fs.collection_failed ? 1 : 0);
    gauge("cairnfs_failed", "1 while nothing becomes durable, because a write or sync of the disk fails or has failed.",
          report.fs.failing ? 1 : 0);
  }

  static void AddCounters(const StatusReport& report, std::vector<MetricFamily>& families) {
    const store::StoreStats& store = report.fs.store;
    auto counter = [&](const char* name, const char* help, uint64_t value) {
      ClientMetric metric;
      metric.counter.value = static_cast<double>(value);
      families.push_back({name, help, MetricType::Counter, {metric}});
    };
    counter("cairnfs_write_bytes_total", "Bytes written through the mount.", report.fs.write_bytes_total);
    counter("cairnfs_read_bytes_total", "Bytes read through the mount.", report.fs.read_bytes_total);
    counter("cairnfs_new_bytes_total", "Chunk bytes stored on this host's disk.", store.new_bytes_total);
    counter("cairnfs_known_bytes_total", "Chunk bytes that this host's disk had already.", store.known_bytes_total);
    counter("cairnfs_disk_read_bytes_total", "Bytes read from segments.", store.disk_read_bytes_total);
    counter("cairnfs_disk_write_bytes_total", "Bytes written to segments.", store.disk_write_bytes_total);
    counter("cairnfs_cache_hits_total", "Chunks served from memory.", store.cache_hits_total);
    counter("cairnfs_cache_misses_total", "Chunks read from the disk.", store.cache_misses_total);
    counter("cairnfs_corrupt_chunks_total", "Chunks that failed their digest.", store.corrupt_chunks_total);
    counter("cairnfs_sync_rounds_total", "Sync rounds.", report.fs.sync_rounds_total);
    counter("cairnfs_sync_points_total", "Sync points answered.", report.fs.sync_points_total);
  }

  static void AddCluster(const ClusterActivityReport& report, std::vector<MetricFamily>& families) {
    auto add = [&](const char* name, const char* help, MetricType type, double value) {
      ClientMetric metric;
      (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
      families.push_back({name, help, type, {metric}});
    };
    auto gauge = [&](const char* name, const char* help, uint64_t value) {
      add(name, help, MetricType::Gauge, static_cast<double>(value));
    };
    auto counter = [&](const char* name, const char* help, uint64_t value) {
      add(name, help, MetricType::Counter, static_cast<double>(value));
    };
    const cluster::ClusterChunkStats& chunks = report.chunks;
    counter("cairnfs_sent_bytes_total", "Chunk bytes sent to other nodes.", chunks.sent_bytes_total);
    counter("cairnfs_received_bytes_total", "Chunk bytes received from other nodes.", chunks.received_bytes_total);
    counter("cairnfs_wire_sent_bytes_total", "Bytes sent to other nodes, digests and framing included.",
            chunks.wire_sent_bytes_total);
    counter("cairnfs_wire_received_bytes_total", "Bytes received from other nodes, digests and framing included.",
            chunks.wire_received_bytes_total);
    counter("cairnfs_new_in_cluster_bytes_total", "Chunk bytes written here that had not all their copies.",
            chunks.new_in_cluster_bytes_total);
    counter("cairnfs_known_in_cluster_bytes_total", "Chunk bytes written here that had: not stored, not sent.",
            chunks.known_in_cluster_bytes_total);
    counter("cairnfs_remote_reads_total", "Chunks read from other nodes.", chunks.remote_reads_total);
    counter("cairnfs_remote_read_bytes_total", "Bytes read from other nodes.", chunks.remote_read_bytes_total);
    gauge("cairnfs_unacknowledged_bytes", "Replication lag: bytes put that have not all their copies yet.",
          chunks.unacknowledged_bytes);
    gauge("cairnfs_copies", "Copies that each chunk is to have.", report.replicas.copies);
    gauge("cairnfs_min_replicas", "Copies that suffice for a commit while nodes are missing.",
          report.replicas.min_replicas);
    gauge("cairnfs_missing_copies", "Chunks known to this node with fewer copies than configured.",
          chunks.missing_copies);
    counter("cairnfs_repair_bytes_total", "Bytes copied to make missing copies.", chunks.repair_bytes_total);
    gauge("cairnfs_repair_chunks_left", "Chunks whose missing copies this node is to make.", chunks.repair_chunks_left);
    counter("cairnfs_metadata_reads_total", "Reads of the shared metadata: round trips.", report.names.read_total);
    counter("cairnfs_metadata_commits_total", "Transactions on the shared metadata: round trips.",
            report.names.commits_total);
    counter("cairnfs_metadata_answers_total", "Reads of metadata answered from memory, under delegations.",
            report.names.answered_total);
    gauge("cairnfs_delegations", "Read delegations held.", report.names.held);
    counter("cairnfs_delegations_recalled_total", "Read delegations that this host has recalled from others.",
            report.names.recalled_total);
    gauge("cairnfs_session", "1 while this host's session with the cluster certainly lives.",
          report.session_holds ? 1 : 0);
    MetricFamily nodes{"cairnfs_nodes", "Nodes of the cluster as this one sees them.", MetricType::Gauge, {}};
    const std::pair<const char*, uint64_t> states[] = {
        {"up", report.nodes_up}, {"down", report.nodes_down}, {"out", report.nodes_out}};
    for (const auto& [state, count] : states) {
      ClientMetric metric;
      metric.label.push_back({"state", state});
      metric.gauge.value = static_cast<double>(count);
      nodes.metric.push_back(metric);
    }
    families.push_back(std::move(nodes));
  }

  const std::function<StatusReport()> report_;
};

}  // namespace

std::string RenderMetrics(const StatusReport& report) {
  return prometheus::TextSerializer().Serialize(Collector([&] { return report; }).Collect());
}

}  // namespace cairnfs::control
