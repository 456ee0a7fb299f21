#include "daemon/exit_codes.h"

#include <gtest/gtest.h>

namespace cairnfs::daemon {
namespace {

// What docs/operating.md and the public header promise, in numbers: scripts hold them.
TEST(ExitCodes, KeepTheirNumbers) {
  EXPECT_EQ(kExitDone, 0);
  EXPECT_EQ(kExitFailed, 1);
  EXPECT_EQ(kExitUsage, 2);
  EXPECT_EQ(kExitNoDaemon, 3);
  EXPECT_EQ(kExitProblems, 4);
  EXPECT_EQ(kExitBusy, 5);
  EXPECT_EQ(kExitPermission, 6);
  EXPECT_EQ(kExitCorrupt, 7);
  EXPECT_EQ(kExitLost, 9);
}

TEST(ExitCodes, WhatAConfigurationNamesIsPartOfIt) {
  for (ErrorCode code :
       {ErrorCode::kNotFound, ErrorCode::kNotDirectory, ErrorCode::kNotEmpty, ErrorCode::kNameTooLong}) {
    EXPECT_EQ(ExitCodeOf(MakeError(code, "why")), kExitFailed);
    Error wrong = AsWrongConfiguration(MakeError(code, "why"));
    EXPECT_EQ(ExitCodeOf(wrong), kExitUsage);
    EXPECT_EQ(wrong.message, "why");
  }
  // These say more already, or may get better.
  for (ErrorCode code : {ErrorCode::kPermission, ErrorCode::kBusy, ErrorCode::kCorrupt, ErrorCode::kNotSupported,
                         ErrorCode::kNoSpace, ErrorCode::kIo}) {
    EXPECT_EQ(AsWrongConfiguration(MakeError(code, "why")).code, code);
  }
}

}  // namespace
}  // namespace cairnfs::daemon
