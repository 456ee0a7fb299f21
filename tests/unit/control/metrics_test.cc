// What Prometheus reads: each number of a report under its own name and of its own type.
#include "control/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace cairnfs::control {
namespace {

struct Metric {
  std::string type;
  double value = 0;
  bool operator==(const Metric&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Metric& metric) { return out << metric.type << ' ' << metric.value; }
using Scrape = std::map<std::string, Metric>;  // by name, with labels

Scrape Parse(const std::string& text) {
  Scrape metrics;
  std::string type, line;
  for (std::istringstream lines(text); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, name;
    words >> first >> second;
    if (first == "#" && second == "TYPE") words >> name >> type;
    if (first != "#") metrics[first] = {type, std::stod(second)};
  }
  return metrics;
}

// Puts another number into each field.
class Numbers {
 public:
  void Gauge(const std::string& name, uint64_t& field) { Set(name, "gauge", field); }
  void Counter(const std::string& name, uint64_t& field) { Set(name + "_total", "counter", field); }
  Scrape expected;

 private:
  void Set(const std::string& name, const std::string& type, uint64_t& field) {
    field = ++last_;
    expected["cairnfs_" + name] = {type, static_cast<double>(field)};
  }
  uint64_t last_ = 1000;
};

void FillOneHost(StatusReport& report, Numbers& numbers) {
  fs::FsStatus& fs = report.fs;
  store::StoreStats& store = fs.store;
  numbers.Gauge("logical_bytes", fs.logical_bytes);
  numbers.Gauge("unique_bytes", store.unique_bytes);
  numbers.Gauge("free_segment_bytes", store.free_segment_bytes);
  numbers.Gauge("dead_bytes", store.dead_bytes);
  numbers.Gauge("available_bytes", report.available_bytes);
  numbers.Gauge("inodes", fs.inode_count);
  numbers.Gauge("chunks", store.chunk_count);
  numbers.Gauge("dirty_bytes", fs.dirty_bytes);
  numbers.Gauge("open_files", fs.open_files);
  numbers.Gauge("pool_buffers", fs.pool_buffers);
  numbers.Gauge("pool_buffers_free", fs.pool_buffers_free);
  numbers.Gauge("pool_buffers_touched", fs.pool_buffers_touched);
  numbers.Counter("write_bytes", fs.write_bytes_total);
  numbers.Counter("read_bytes", fs.read_bytes_total);
  numbers.Counter("new_bytes", store.new_bytes_total);
  numbers.Counter("known_bytes", store.known_bytes_total);
  numbers.Counter("disk_read_bytes", store.disk_read_bytes_total);
  numbers.Counter("disk_write_bytes", store.disk_write_bytes_total);
  numbers.Counter("cache_hits", store.cache_hits_total);
  numbers.Counter("cache_misses", store.cache_misses_total);
  numbers.Counter("corrupt_chunks", store.corrupt_chunks_total);
  numbers.Counter("sync_rounds", fs.sync_rounds_total);
  numbers.Counter("sync_points", fs.sync_points_total);
  store.segment_bytes = store.free_segment_bytes + 50'000;
  report.metadata_bytes = 7000;
  numbers.expected["cairnfs_on_disk_bytes"] = {"gauge", 57'000};
  LiveReport& live = report.live.emplace();
  numbers.Gauge("live_bytes", live.totals.live_bytes);
  numbers.Gauge("unreferenced_bytes", live.totals.unreferenced_bytes);
  numbers.Gauge("counted_seconds_ago", live.counted_seconds_ago);
  report.daemon.dedup = "owner";  // else they are rounded
  for (const char* name : {"collecting", "collection_failed", "failed"}) {
    numbers.expected[std::string("cairnfs_") + name] = {"gauge", 0};
  }
}

void FillCluster(ClusterActivityReport& report, Numbers& numbers) {
  cluster::ClusterChunkStats& chunks = report.chunks;
  numbers.Counter("sent_bytes", chunks.sent_bytes_total);
  numbers.Counter("received_bytes", chunks.received_bytes_total);
  numbers.Counter("wire_sent_bytes", chunks.wire_sent_bytes_total);
  numbers.Counter("wire_received_bytes", chunks.wire_received_bytes_total);
  numbers.Counter("new_in_cluster_bytes", chunks.new_in_cluster_bytes_total);
  numbers.Counter("known_in_cluster_bytes", chunks.known_in_cluster_bytes_total);
  numbers.Counter("remote_reads", chunks.remote_reads_total);
  numbers.Counter("remote_read_bytes", chunks.remote_read_bytes_total);
  numbers.Gauge("unacknowledged_bytes", chunks.unacknowledged_bytes);
  numbers.Gauge("missing_copies", chunks.missing_copies);
  numbers.Counter("repair_bytes", chunks.repair_bytes_total);
  numbers.Gauge("repair_chunks_left", chunks.repair_chunks_left);
  numbers.Counter("metadata_reads", report.names.read_total);
  numbers.Counter("metadata_commits", report.names.commits_total);
  numbers.Counter("metadata_answers", report.names.answered_total);
  numbers.Gauge("delegations", report.names.held);
  numbers.Counter("delegations_recalled", report.names.recalled_total);
  numbers.Gauge("nodes{state=\"up\"}", report.nodes_up);
  numbers.Gauge("nodes{state=\"down\"}", report.nodes_down);
  numbers.Gauge("nodes{state=\"out\"}", report.nodes_out);
  numbers.expected["cairnfs_session"] = {"gauge", 0};
  report.replicas = {3, 2};
  numbers.expected["cairnfs_copies"] = {"gauge", 3};
  numbers.expected["cairnfs_min_replicas"] = {"gauge", 2};
}

TEST(Metrics, OfOneHost) {
  StatusReport report;
  Numbers numbers;
  FillOneHost(report, numbers);
  EXPECT_EQ(Parse(RenderMetrics(report)), numbers.expected);
}

TEST(Metrics, OfAHostOfACluster) {
  StatusReport report;
  Numbers numbers;
  FillOneHost(report, numbers);
  FillCluster(report.cluster.emplace(), numbers);
  EXPECT_EQ(Parse(RenderMetrics(report)), numbers.expected);
}

// A user who writes what somebody else may have stored does not see it in any of them.
TEST(Metrics, NoSmallStepTellsWhetherBytesWereKnown) {
  StatusReport report;
  report.daemon.dedup = "mount";
  store::StoreStats& store = report.fs.store;
  cluster::ClusterChunkStats& chunks = report.cluster.emplace().chunks;
  store::LiveTotals& live = report.live.emplace().totals;
  const uint64_t base = 3 * 64 * kMiB;
  std::vector<uint64_t*> all = {&store.unique_bytes,
                                &store.segment_bytes,
                                &store.dead_bytes,
                                &store.new_bytes_total,
                                &store.known_bytes_total,
                                &report.metadata_bytes,
                                &report.available_bytes,
                                &store.disk_write_bytes_total,
                                &report.fs.dirty_bytes,
                                &chunks.sent_bytes_total,
                                &chunks.received_bytes_total,
                                &chunks.wire_sent_bytes_total,
                                &chunks.wire_received_bytes_total,
                                &chunks.new_in_cluster_bytes_total,
                                &chunks.known_in_cluster_bytes_total,
                                &chunks.unacknowledged_bytes,
                                &chunks.remote_read_bytes_total,
                                &store.disk_read_bytes_total,
                                &live.live_bytes,
                                &live.unreferenced_bytes};
  const uint64_t base_count = 640;
  std::vector<uint64_t*> counts = {&store.chunk_count, &store.cache_hits_total, &store.cache_misses_total,
                                   &chunks.remote_reads_total};
  for (uint64_t* bytes : all) *bytes = base;
  for (uint64_t* count : counts) *count = base_count;
  const Scrape before = Parse(RenderMetrics(report));
  EXPECT_EQ(before.at("cairnfs_known_bytes_total").value, static_cast<double>(base));
  EXPECT_EQ(before.at("cairnfs_chunks").value, 640);
  for (uint64_t* bytes : all) *bytes += 16 * kMiB;
  for (uint64_t* count : counts) *count += 63;
  EXPECT_EQ(Parse(RenderMetrics(report)), before);
  for (uint64_t* bytes : all) *bytes += 48 * kMiB;
  for (uint64_t* count : counts) *count += 1;
  EXPECT_EQ(Parse(RenderMetrics(report)).at("cairnfs_known_bytes_total").value, static_cast<double>(base + 64 * kMiB));
  EXPECT_EQ(Parse(RenderMetrics(report)).at("cairnfs_cache_misses_total").value, 704);
}

TEST(Metrics, WhatIsSoOrNotIsOneOrZero) {
  StatusReport report;
  report.cluster.emplace();
  const std::pair<const char*, bool*> all[] = {{"cairnfs_collecting", &report.fs.collecting},
                                               {"cairnfs_collection_failed", &report.fs.collection_failed},
                                               {"cairnfs_failed", &report.fs.failing},
                                               {"cairnfs_session", &report.cluster->session_holds}};
  for (const auto& [name, is_so] : all) {
    *is_so = true;
    for (const auto& [other, value] : Parse(RenderMetrics(report))) {
      EXPECT_EQ(value.value, other == name ? 1 : 0) << name << ' ' << other;
    }
    *is_so = false;
  }
}

}  // namespace
}  // namespace cairnfs::control
