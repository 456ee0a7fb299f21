#include <gtest/gtest.h>

#include "daemon/notify.h"

namespace cairnfs::daemon {
namespace {

TEST(StartReport, Ready) { EXPECT_TRUE(ParseStartReport("ready\n").ready); }

TEST(StartReport, FailureCarriesCodeAndMessage) {
  StartReport report = ParseStartReport("failed 5\nin use by process 7");
  EXPECT_FALSE(report.ready);
  EXPECT_EQ(report.exit_code, 5);
  EXPECT_EQ(report.message, "in use by process 7");
}

TEST(StartReport, AnythingElseIsAFailure) {
  for (const char* text : {"", "ready", "failed", "failed ", "failed x\ny", "failed 0\nz", "failed 3"}) {
    StartReport report = ParseStartReport(text);
    EXPECT_FALSE(report.ready) << text;
    EXPECT_NE(report.exit_code, 0) << text;
  }
}

}  // namespace
}  // namespace cairnfs::daemon
