#include "control/convert.h"

#include <gtest/gtest.h>

namespace cairnfs::control {
namespace {

TEST(Convert, StatusSurvivesTheWire) {
  StatusReport report;
  report.daemon = {"1.2", "/d", "/m", "u", "log", 42};
  report.uptime_seconds = 7;
  report.metadata_bytes = 1000;
  report.available_bytes = 99;
  report.write_bytes_per_second = 2.5;
  report.fs.logical_bytes = 11;
  report.fs.dirty_bytes = 12;
  report.fs.pool_buffers = 64;
  report.fs.collecting = true;
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
  EXPECT_EQ(back.OnDiskBytes(), report.OnDiskBytes());
  EXPECT_EQ(back.fs.store.segment_bytes, 5000U);
  EXPECT_EQ(back.fs.last_error, "disk on fire");
  EXPECT_TRUE(back.fs.failing);
  EXPECT_EQ(back.fs.logical_bytes, 11U);
  EXPECT_TRUE(back.fs.collecting);
  EXPECT_EQ(back.write_bytes_per_second, 2.5);
}

TEST(Convert, ProblemsWithOddBytesTravel) {
  CheckReport report;
  report.problems = {"file \xff\xfe is torn"};
  report.problem_count = 3;
  report.damaged_files = {"a/\xff\xfe"};
  report.damaged_file_count = 2;
  CheckReply reply;
  ToMessage(report, reply);
  CheckReport back = FromMessage(reply);
  EXPECT_EQ(back.problems, report.problems);
  EXPECT_EQ(back.problem_count, 3U);
  EXPECT_EQ(back.damaged_files, report.damaged_files);
  EXPECT_EQ(back.damaged_file_count, 2U);
}

}  // namespace
}  // namespace cairnfs::control
