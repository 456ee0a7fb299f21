#include "control/convert.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cairnfs::control {
namespace {

TEST(Convert, AStatusHasWhatTheFilesystemTells) {
  fs::FsStatus status;
  status.logical_bytes = 11;
  status.inode_count = 12;
  status.metadata_room_bytes = 13;
  status.dirty_bytes = 14;
  status.open_files = 15;
  status.write_bytes_total = 16;
  status.read_bytes_total = 17;
  status.sync_rounds_total = 18;
  status.sync_points_total = 19;
  status.pool_buffers = 20;
  status.pool_buffers_free = 21;
  status.pool_buffers_touched = 22;
  status.passthrough = {
      .why_not = "no root", .files = 30, .bytes = 31, .opens_total = 32, .filled_total = 33, .failed_total = 34};
  status.collecting = true;
  status.collection_failed = true;
  status.failing = true;
  status.last_error = "disk \xff on fire";
  StatusReply reply;
  ToMessage(status, reply);
  EXPECT_TRUE(reply.failing());
  EXPECT_EQ(reply.last_error(), status.last_error);
  const Space& space = reply.space();
  EXPECT_EQ(space.logical_bytes(), 11U);
  EXPECT_EQ(space.inode_count(), 12U);
  EXPECT_EQ(space.metadata_room_bytes(), 13U);
  const Activity& activity = reply.activity();
  EXPECT_EQ(activity.dirty_bytes(), 14U);
  EXPECT_EQ(activity.open_files(), 15U);
  EXPECT_EQ(activity.write_bytes_total(), 16U);
  EXPECT_EQ(activity.read_bytes_total(), 17U);
  EXPECT_EQ(activity.sync_rounds_total(), 18U);
  EXPECT_EQ(activity.sync_points_total(), 19U);
  EXPECT_EQ(activity.pool_buffers(), 20U);
  EXPECT_EQ(activity.pool_buffers_free(), 21U);
  EXPECT_EQ(activity.pool_buffers_touched(), 22U);
  const Passthrough& passthrough = activity.passthrough();
  EXPECT_EQ(passthrough.why_not(), "no root");
  EXPECT_EQ(passthrough.files(), 30U);
  EXPECT_EQ(passthrough.bytes(), 31U);
  EXPECT_EQ(passthrough.opens_total(), 32U);
  EXPECT_EQ(passthrough.fills_total(), 33U);
  EXPECT_EQ(passthrough.fills_failed_total(), 34U);
  EXPECT_TRUE(activity.collecting());
  EXPECT_TRUE(activity.collection_failed());
}

TEST(Convert, AStatusHasWhatTheStoreTells) {
  fs::FsStatus status;
  status.store.chunk_count = 1;
  status.store.unique_bytes = 2;
  status.store.segment_count = 3;
  status.store.segment_bytes = 5000;
  status.store.free_segment_bytes = 2000;
  status.store.dead_bytes = 4;
  status.store.new_bytes_total = 5;
  status.store.known_bytes_total = 6;
  status.store.disk_read_bytes_total = 7;
  status.store.disk_write_bytes_total = 8;
  status.store.cache_hits_total = 9;
  status.store.cache_misses_total = 10;
  status.store.corrupt_chunks_total = 11;
  StatusReply reply;
  ToMessage(status, reply);
  const Space& space = reply.space();
  EXPECT_EQ(space.chunk_count(), 1U);
  EXPECT_EQ(space.unique_bytes(), 2U);
  EXPECT_EQ(space.segment_count(), 3U);
  EXPECT_EQ(space.on_disk_bytes(), 3000U);
  EXPECT_EQ(space.free_segment_bytes(), 2000U);
  EXPECT_EQ(space.dead_bytes(), 4U);
  const Activity& activity = reply.activity();
  EXPECT_EQ(activity.new_bytes_total(), 5U);
  EXPECT_EQ(activity.known_bytes_total(), 6U);
  EXPECT_EQ(activity.disk_read_bytes_total(), 7U);
  EXPECT_EQ(activity.disk_write_bytes_total(), 8U);
  EXPECT_EQ(activity.cache_hits_total(), 9U);
  EXPECT_EQ(activity.cache_misses_total(), 10U);
  EXPECT_EQ(activity.corrupt_chunks_total(), 11U);
}

TEST(Convert, WhatWasNotCountedIsAbsent) {
  fs::FsStatus status;
  StatusReply reply;
  ToMessage(status, reply);
  EXPECT_FALSE(reply.space().has_live());
  EXPECT_FALSE(reply.space().has_metadata_room_bytes());
  EXPECT_FALSE(reply.has_cluster());
  status.live.emplace().totals = {1, 2, 3, 4};
  ToMessage(status, reply);
  EXPECT_EQ(reply.space().live().live_chunk_count(), 1U);
  EXPECT_EQ(reply.space().live().live_bytes(), 2U);
  EXPECT_EQ(reply.space().live().unreferenced_chunk_count(), 3U);
  EXPECT_EQ(reply.space().live().unreferenced_bytes(), 4U);
}

TEST(Convert, ProblemsWithOddBytesTravel) {
  fs::CheckReport report;
  report.problems = {"file \xff\xfe is torn"};
  report.problem_count = 3;
  report.repaired = {"chunk of \xff\xfe"};
  report.repaired_count = 4;
  report.damaged_files = {"a/\xff\xfe"};
  report.damaged_file_count = 2;
  CheckReply reply, back;
  ToMessage(report, reply);
  ASSERT_TRUE(back.ParseFromString(reply.SerializeAsString()));
  ASSERT_EQ(back.problems_size(), 1);
  EXPECT_EQ(back.problems(0), report.problems[0]);
  EXPECT_EQ(back.problem_count(), 3U);
  ASSERT_EQ(back.repaired_size(), 1);
  EXPECT_EQ(back.repaired(0), report.repaired[0]);
  EXPECT_EQ(back.repaired_count(), 4U);
  ASSERT_EQ(back.damaged_files_size(), 1);
  EXPECT_EQ(back.damaged_files(0), report.damaged_files[0]);
  EXPECT_EQ(back.damaged_file_count(), 2U);
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
