// What a run of a policy tells, line by line.
#include "retention/report.h"

#include <gtest/gtest.h>

namespace cairnfs::retention {
namespace {

TEST(ReportTest, LinesAreTakenOver) {
  Report end;
  end.error = "why \"not\"";
  end.stays_for_now = true;
  end.stay_count = 4;
  end.next = 1'700'000'000;
  end.notes = {"odd\n", "\xff is no text"};
  Report report;
  report.error = "it was cut short";
  const auto removed = report.Add(RemovedLine({"step-1", "it is old"}));
  ASSERT_TRUE(removed.ok() && *removed);
  EXPECT_EQ((*removed)->name + (*removed)->reason, "step-1it is old");
  const auto failed = report.Add(FailedLine({"step-2", "busy"}));
  EXPECT_TRUE(failed.ok() && !*failed);
  ASSERT_TRUE(report.Add(EndLine(end)).ok());
  EXPECT_EQ(report.removed_count, 1u);
  EXPECT_EQ(report.failed.at(0).reason, "busy");
  EXPECT_EQ(report.error, end.error);
  EXPECT_TRUE(report.has_policy && report.stays_for_now);
  EXPECT_EQ(report.stay_count, 4u);
  EXPECT_EQ(report.next, end.next);
  EXPECT_EQ(report.notes.size(), 2u);
}

TEST(ReportTest, WhatItKeepsIsBounded) {
  Report report;
  const std::string line = RemovedLine({std::string(100'000, 'n'), std::string(100'000, '\xff')});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(report.Add(line).ok());
  EXPECT_EQ(report.removed_count, 1000u);
  EXPECT_EQ(report.removed.size(), Report::kToldMax);
  EXPECT_LT(report.Text().size(), 64u * 1024);
}

TEST(ReportTest, OtherLinesAreRefused) {
  for (const char* line : {"", "x", "[]", "1", "{}", R"({"removed":"step-1"})",
                           R"({"removed":{"name":1,"reason":"a"}})", R"({"end":[]})"}) {
    Report report;
    EXPECT_EQ(report.Add(line).error().code, ErrorCode::kInvalidArgument) << line;
  }
  Report report;
  ASSERT_TRUE(report.Add(R"({"end":{"next":"soon","stay_count":-1,"notes":[1,{}],"error":null}})").ok());
  EXPECT_FALSE(report.next);
  EXPECT_TRUE(report.notes.empty());
  EXPECT_FALSE(report.has_policy);
}

}  // namespace
}  // namespace cairnfs::retention
