// What Prometheus reads: each number of a report under its own name and of its own type.
#include "control/metrics.h"

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <sstream>
#include <vector>

#include "base/types.h"

namespace cairnfs::control {
namespace {

using google::protobuf::Message;

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

// Puts another number into each field, and expects it in the metric of that name.
class Numbers {
 public:
  void Gauge(Message& message, const std::string& field) { Gauge(message, field, field); }
  void Gauge(Message& message, const std::string& field, const std::string& name) {
    Set(message, field, name, "gauge");
  }
  void Counter(Message& message, const std::string& name) { Counter(message, name, name); }
  void Counter(Message& message, const std::string& field, const std::string& name) {
    Set(message, field + "_total", name + "_total", "counter");
  }
  Scrape expected;

 private:
  void Set(Message& message, const std::string& field, const std::string& name, const std::string& type) {
    ++last_;
    const auto* descriptor = message.GetDescriptor()->FindFieldByName(field);
    if (descriptor->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT32) {
      message.GetReflection()->SetUInt32(&message, descriptor, static_cast<uint32_t>(last_));
    } else {
      message.GetReflection()->SetUInt64(&message, descriptor, last_);
    }
    expected["cairnfs_" + name] = {type, static_cast<double>(last_)};
  }
  uint64_t last_ = 1000;
};

void FillOneHost(StatusReply& status, Numbers& numbers) {
  Space& space = *status.mutable_space();
  for (const char* name : {"logical_bytes", "unique_bytes", "on_disk_bytes", "free_segment_bytes", "dead_bytes",
                           "available_bytes", "trash_entries", "trash_bytes"}) {
    numbers.Gauge(space, name);
  }
  numbers.Gauge(space, "inode_count", "inodes");
  numbers.Gauge(space, "chunk_count", "chunks");
  for (const char* name : {"live_bytes", "unreferenced_bytes", "counted_seconds_ago"}) {
    numbers.Gauge(*space.mutable_live(), name);
  }
  Activity& activity = *status.mutable_activity();
  for (const char* name : {"dirty_bytes", "open_files", "pool_buffers", "pool_buffers_free", "pool_buffers_touched"}) {
    numbers.Gauge(activity, name);
  }
  for (const char* name :
       {"write_bytes", "read_bytes", "new_bytes", "known_bytes", "disk_read_bytes", "disk_write_bytes", "cache_hits",
        "cache_misses", "corrupt_chunks", "sync_rounds", "sync_points"}) {
    numbers.Counter(activity, name);
  }
  Passthrough& passthrough = *activity.mutable_passthrough();
  for (const char* name : {"files", "bytes"}) numbers.Gauge(passthrough, name, std::string("passthrough_") + name);
  for (const char* name : {"opens", "fills", "fills_failed"}) {
    numbers.Counter(passthrough, name, std::string("passthrough_") + name);
  }
  for (const char* name : {"collecting", "collection_failed", "failed"}) {
    numbers.expected[std::string("cairnfs_") + name] = {"gauge", 0};
  }
  status.set_dedup("owner");  // else they are rounded
}

void FillCluster(ClusterActivity& cluster, Numbers& numbers) {
  for (const char* name :
       {"sent_bytes", "received_bytes", "wire_sent_bytes", "wire_received_bytes", "new_in_cluster_bytes",
        "known_in_cluster_bytes", "remote_reads", "remote_read_bytes", "repair_bytes", "metadata_reads",
        "metadata_commits", "metadata_answers", "delegations_recalled", "refused"}) {
    numbers.Counter(cluster, name);
  }
  for (const char* name : {"unacknowledged_bytes", "missing_copies", "repair_chunks_left", "delegations", "copies",
                           "min_replicas", "certificate_seconds_left"}) {
    numbers.Gauge(cluster, name);
  }
  numbers.Gauge(cluster, "nodes_up", "nodes{state=\"up\"}");
  numbers.Gauge(cluster, "nodes_down", "nodes{state=\"down\"}");
  numbers.Gauge(cluster, "nodes_out", "nodes{state=\"out\"}");
  numbers.expected["cairnfs_session"] = {"gauge", 0};
}

TEST(Metrics, OfOneHost) {
  StatusReply status;
  Numbers numbers;
  FillOneHost(status, numbers);
  EXPECT_EQ(Parse(RenderMetrics(status)), numbers.expected);
}

TEST(Metrics, OfAHostOfACluster) {
  StatusReply status;
  Numbers numbers;
  FillOneHost(status, numbers);
  FillCluster(*status.mutable_cluster(), numbers);
  EXPECT_EQ(Parse(RenderMetrics(status)), numbers.expected);
}

TEST(Metrics, WhatWasNotCountedIsAbsent) {
  StatusReply status;
  status.mutable_space();
  const Scrape scrape = Parse(RenderMetrics(status));
  EXPECT_TRUE(scrape.contains("cairnfs_unique_bytes"));
  EXPECT_FALSE(scrape.contains("cairnfs_live_bytes"));
}

TEST(Metrics, EachHasAHelp) {
  StatusReply status;
  Numbers numbers;
  FillOneHost(status, numbers);
  FillCluster(*status.mutable_cluster(), numbers);
  std::map<std::string, size_t> helps;  // words after the name
  std::string line, first, second, name, word;
  for (std::istringstream lines(RenderMetrics(status)); std::getline(lines, line);) {
    std::istringstream words(line);
    words >> first >> second >> name;
    if (second != "HELP") continue;
    for (size_t& count = helps[name]; words >> word;) ++count;
  }
  EXPECT_EQ(helps.size(), numbers.expected.size() - 2);  // three of them are one
  for (const auto& [metric, count] : helps) EXPECT_GE(count, 2U) << metric;
}

// A user who writes what somebody else may have stored does not see it in any of them.
TEST(Metrics, NoSmallStepTellsWhetherBytesWereKnown) {
  StatusReply status;
  status.set_dedup("mount");
  Message& space = *status.mutable_space();
  Message& live = *status.mutable_space()->mutable_live();
  Message& activity = *status.mutable_activity();
  Message& cluster = *status.mutable_cluster();
  const std::vector<std::pair<Message*, const char*>> bytes = {{&space, "unique_bytes"},
                                                               {&space, "on_disk_bytes"},
                                                               {&space, "free_segment_bytes"},
                                                               {&space, "dead_bytes"},
                                                               {&space, "available_bytes"},
                                                               {&live, "live_bytes"},
                                                               {&live, "unreferenced_bytes"},
                                                               {&activity, "dirty_bytes"},
                                                               {&activity, "new_bytes_total"},
                                                               {&activity, "known_bytes_total"},
                                                               {&activity, "disk_read_bytes_total"},
                                                               {&activity, "disk_write_bytes_total"},
                                                               {&cluster, "sent_bytes_total"},
                                                               {&cluster, "received_bytes_total"},
                                                               {&cluster, "wire_sent_bytes_total"},
                                                               {&cluster, "wire_received_bytes_total"},
                                                               {&cluster, "new_in_cluster_bytes_total"},
                                                               {&cluster, "known_in_cluster_bytes_total"},
                                                               {&cluster, "unacknowledged_bytes"},
                                                               {&cluster, "remote_read_bytes_total"}};
  const std::vector<std::pair<Message*, const char*>> counts = {
      {&space, "chunk_count"},         {&activity, "pool_buffers_free"},  {&activity, "pool_buffers_touched"},
      {&activity, "cache_hits_total"}, {&activity, "cache_misses_total"}, {&cluster, "remote_reads_total"}};
  const auto set = [](const auto& fields, uint64_t value) {
    for (const auto& [message, name] : fields) {
      message->GetReflection()->SetUInt64(message, message->GetDescriptor()->FindFieldByName(name), value);
    }
  };
  const uint64_t base = 3 * 64 * kMiB, base_count = 640;
  set(bytes, base);
  set(counts, base_count);
  const Scrape before = Parse(RenderMetrics(status));
  EXPECT_EQ(before.at("cairnfs_known_bytes_total").value, static_cast<double>(base));
  EXPECT_EQ(before.at("cairnfs_chunks").value, 640);
  set(bytes, base + 64 * kMiB - 1);
  set(counts, base_count + 63);
  EXPECT_EQ(Parse(RenderMetrics(status)), before);
  set(bytes, base + 64 * kMiB);
  set(counts, base_count + 64);
  const Scrape after = Parse(RenderMetrics(status));
  EXPECT_EQ(after.at("cairnfs_known_bytes_total").value, static_cast<double>(base + 64 * kMiB));
  EXPECT_EQ(after.at("cairnfs_cache_misses_total").value, 704);
}

Durations DurationsOf(uint64_t first, uint64_t second, uint64_t longer) {
  Durations durations;
  for (const auto& [seconds, count] : {std::pair(0.5, first), std::pair(10.0, second)}) {
    Bucket& bucket = *durations.add_buckets();
    bucket.set_seconds_max(seconds);
    bucket.set_count(count);
  }
  durations.set_count(first + second + longer);
  durations.set_sum_seconds(7.25);
  return durations;
}

void AddRun(StatusReply& status, const std::string& directory) {
  Run& run = *status.add_runs();
  run.set_directory(directory);
  *run.mutable_write_seconds() = DurationsOf(2, 3, 4);
  run.set_written_bytes_total(500);
  run.set_new_bytes_total(400);
  run.set_checkpoint_age_seconds(60);
}

std::string LinesOf(const std::string& text, const std::string& beginning) {
  std::string found, line;
  for (std::istringstream lines(text); std::getline(lines, line);) {
    if (line.starts_with(beginning)) found += line + "\n";
  }
  return found;
}

TEST(Metrics, OfRunsHaveTheirDirectoryAsLabel) {
  StatusReply status;
  status.set_dedup("owner");
  AddRun(status, "/run");
  AddRun(status, "/a \"b\" \\c");
  const std::string text = RenderMetrics(status);
  EXPECT_EQ(LinesOf(text, "cairnfs_run_write_seconds"), R"(cairnfs_run_write_seconds_count{directory="/run"} 9
cairnfs_run_write_seconds_sum{directory="/run"} 7.25
cairnfs_run_write_seconds_bucket{directory="/run",le="0.5"} 2
cairnfs_run_write_seconds_bucket{directory="/run",le="10"} 5
cairnfs_run_write_seconds_bucket{directory="/run",le="+Inf"} 9
cairnfs_run_write_seconds_count{directory="/a \"b\" \\c"} 9
cairnfs_run_write_seconds_sum{directory="/a \"b\" \\c"} 7.25
cairnfs_run_write_seconds_bucket{directory="/a \"b\" \\c",le="0.5"} 2
cairnfs_run_write_seconds_bucket{directory="/a \"b\" \\c",le="10"} 5
cairnfs_run_write_seconds_bucket{directory="/a \"b\" \\c",le="+Inf"} 9
)");
  EXPECT_EQ(LinesOf(text, "# TYPE cairnfs_run_w"), R"(# TYPE cairnfs_run_write_seconds histogram
# TYPE cairnfs_run_written_bytes_total counter
)") << "each once";
  EXPECT_EQ(LinesOf(text, "cairnfs_run_new_bytes_total{directory=\"/run\"}"),
            "cairnfs_run_new_bytes_total{directory=\"/run\"} 400\n");
  EXPECT_EQ(LinesOf(text, "cairnfs_run_checkpoint_step"), "");
}

TEST(Metrics, NewBytesOfARunAreToldOnlyWhereOwnersHaveChunksOfTheirOwn) {
  StatusReply status;
  status.set_dedup("mount");
  AddRun(status, "/run");
  const std::string text = RenderMetrics(status);
  EXPECT_EQ(text.find("run_new_bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("run_written_bytes_total{directory=\"/run\"} 500"), std::string::npos) << text;
}

TEST(Metrics, WhatIsSoOrNotIsOneOrZero) {
  StatusReply status;
  Activity& activity = *status.mutable_activity();
  ClusterActivity& cluster = *status.mutable_cluster();
  const std::pair<const char*, std::function<void(bool)>> all[] = {
      {"cairnfs_collecting", [&](bool is_so) { activity.set_collecting(is_so); }},
      {"cairnfs_collection_failed", [&](bool is_so) { activity.set_collection_failed(is_so); }},
      {"cairnfs_failed", [&](bool is_so) { status.set_failing(is_so); }},
      {"cairnfs_session", [&](bool is_so) { cluster.set_session_holds(is_so); }}};
  for (const auto& [name, set] : all) {
    set(true);
    for (const auto& [other, value] : Parse(RenderMetrics(status))) {
      EXPECT_EQ(value.value, other == name ? 1 : 0) << name << ' ' << other;
    }
    set(false);
  }
}

}  // namespace
}  // namespace cairnfs::control
