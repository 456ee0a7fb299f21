#include "control/convert.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cairnfs::control {
namespace {

TEST(Convert, StatusSurvivesTheWire) {
  StatusReport report;
  report.daemon = {"1.2", "/d", "/m", "u", "log", 42, "owner"};
  report.live = {{1, 2, 3, 4}, 5};
  report.uptime_seconds = 7;
  report.metadata_bytes = 1000;
  report.available_bytes = 99;
  report.write_bytes_per_second = 2.5;
  report.fs.logical_bytes = 11;
  report.fs.dirty_bytes = 12;
  report.fs.pool_buffers = 64;
  report.fs.pool_buffers_touched = 32;
  report.fs.collecting = true;
  report.fs.collection_failed = true;
  report.fs.last_error = "disk on fire";
  report.fs.failing = true;
  report.fs.store.unique_bytes = 5;
  report.fs.store.segment_bytes = 5000;
  report.fs.store.free_segment_bytes = 2000;
  StatusReply reply;
  ToMessage(report, reply);
  EXPECT_EQ(reply.space().on_disk_bytes(), 4000U);
  StatusReport back = FromMessage(reply);
  EXPECT_EQ(back.daemon.pid, 42U);
  EXPECT_EQ(back.daemon.mount_point, "/m");
  EXPECT_EQ(back.daemon.dedup, "owner");
  ASSERT_TRUE(back.live.has_value());
  EXPECT_EQ(back.live->totals.live_chunks, 1U);
  EXPECT_EQ(back.live->totals.live_bytes, 2U);
  EXPECT_EQ(back.live->totals.unreferenced_chunks, 3U);
  EXPECT_EQ(back.live->totals.unreferenced_bytes, 4U);
  EXPECT_EQ(back.live->counted_seconds_ago, 5U);
  EXPECT_EQ(back.OnDiskBytes(), report.OnDiskBytes());
  EXPECT_EQ(back.fs.store.segment_bytes, 5000U);
  EXPECT_EQ(back.fs.last_error, "disk on fire");
  EXPECT_TRUE(back.fs.failing);
  EXPECT_EQ(back.fs.logical_bytes, 11U);
  EXPECT_EQ(back.fs.pool_buffers_touched, 32U);
  EXPECT_TRUE(back.fs.collecting);
  EXPECT_TRUE(back.fs.collection_failed);
  EXPECT_EQ(back.write_bytes_per_second, 2.5);
}

TEST(Convert, ProblemsWithOddBytesTravel) {
  CheckReport report;
  report.problems = {"file \xff\xfe is torn"};
  report.problem_count = 3;
  report.repaired = {"chunk of \xff\xfe"};
  report.repaired_count = 4;
  report.damaged_files = {"a/\xff\xfe"};
  report.damaged_file_count = 2;
  CheckReply reply;
  ToMessage(report, reply);
  CheckReport back = FromMessage(reply);
  EXPECT_EQ(back.problems, report.problems);
  EXPECT_EQ(back.problem_count, 3U);
  EXPECT_EQ(back.repaired, report.repaired);
  EXPECT_EQ(back.repaired_count, 4U);
  EXPECT_EQ(back.damaged_files, report.damaged_files);
  EXPECT_EQ(back.damaged_file_count, 2U);
}

TEST(Convert, AHostAloneHasNoCluster) {
  StatusReport report;
  StatusReply reply;
  ToMessage(report, reply);
  EXPECT_FALSE(FromMessage(reply).cluster.has_value());
  EXPECT_FALSE(FromMessage(reply).live.has_value());
  report.cluster.emplace();
  report.cluster->chunks.missing_copies = 5;
  report.cluster->chunks.repair_phase = "copying";
  report.cluster->chunks.wire_sent_bytes_total = 6;
  report.cluster->chunks.wire_received_bytes_total = 7;
  report.cluster->replicas = {4, 2};
  report.cluster->nodes_out = 1;
  report.failures = {"step \xff was not renamed"};
  reply.Clear();
  ToMessage(report, reply);
  StatusReport back = FromMessage(reply);
  ASSERT_TRUE(back.cluster.has_value());
  EXPECT_EQ(back.cluster->chunks.missing_copies, 5U);
  EXPECT_EQ(back.cluster->chunks.repair_phase, "copying");
  EXPECT_EQ(back.cluster->chunks.wire_sent_bytes_total, 6U);
  EXPECT_EQ(back.cluster->chunks.wire_received_bytes_total, 7U);
  EXPECT_EQ(back.cluster->replicas.copies, 4U);
  EXPECT_EQ(back.cluster->replicas.min_replicas, 2U);
  EXPECT_EQ(back.cluster->nodes_out, 1U);
  EXPECT_EQ(back.failures, report.failures);
}

TEST(Convert, NodesSurviveTheWire) {
  ClusterReport report;
  report.filesystem = "ff";
  report.replicas = {3, 2};
  NodeReport node;
  node.info.id = *cluster::NodeId::FromHex("00112233445566778899aabbccddeeff");
  node.info.name = "rack 1 \xff";
  node.info.state = cluster::NodeState::kOut;
  node.info.weight = 1.5;
  report.nodes.push_back(node);
  node.is_self = true;
  node.info.state = cluster::NodeState::kUp;
  node.usage.emplace();
  node.usage->available_bytes = 77;
  node.usage->repair_bytes_per_second = 2.5;
  report.nodes.push_back(node);
  ClusterReply reply;
  ToMessage(report, reply);
  ClusterReport back = FromMessage(reply);
  EXPECT_EQ(back.replicas.copies, 3U);
  EXPECT_EQ(back.replicas.min_replicas, 2U);
  ASSERT_EQ(back.nodes.size(), 2U);
  EXPECT_EQ(back.nodes[0].info.id, node.info.id);
  EXPECT_EQ(back.nodes[0].info.name, node.info.name);
  EXPECT_EQ(back.nodes[0].info.state, cluster::NodeState::kOut);
  EXPECT_EQ(back.nodes[0].info.weight, 1.5);
  EXPECT_FALSE(back.nodes[0].usage.has_value());
  ASSERT_TRUE(back.nodes[1].usage.has_value());
  EXPECT_EQ(back.nodes[1].usage->available_bytes, 77U);
  EXPECT_EQ(back.nodes[1].usage->repair_bytes_per_second, 2.5);
}

TEST(Convert, ArrivalsSurviveTheWire) {
  GateCall call;
  call.directory = InodeId{17};
  call.final_parent = InodeId{1};
  call.final_name = "step\xff";
  call.ranks = 4;
  call.rank = 0;
  call.timeout = std::chrono::milliseconds(1500);
  CommitArrival arrival;
  ToMessage(call, arrival);
  GateCall back = FromMessage(arrival);
  EXPECT_EQ(back.directory, call.directory);
  EXPECT_EQ(back.final_name, call.final_name);
  EXPECT_EQ(back.rank, call.rank);
  EXPECT_EQ(back.timeout, call.timeout);
  call.rank.reset();
  call.id = "logger";
  arrival.Clear();
  ToMessage(call, arrival);
  EXPECT_FALSE(FromMessage(arrival).rank.has_value());
  EXPECT_EQ(FromMessage(arrival).id, "logger");
}

}  // namespace
}  // namespace cairnfs::control
