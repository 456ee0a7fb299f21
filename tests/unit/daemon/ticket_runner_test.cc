// What the process that renames tells its daemon.
#include "daemon/ticket_runner.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cairnfs::daemon {
namespace {

using Kind = fs::TicketOutcome::Kind;

TEST(TicketRunnerTest, WhatTheProcessTells) {
  EXPECT_EQ(ParseOutcomeLine(OutcomeLine(0, "")).kind, Kind::kRenamed);
  const auto refused = ParseOutcomeLine(OutcomeLine(EACCES, "cannot rename 'a\nb'"));
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_EQ(refused.reason, "cannot rename 'a b'");
  for (const int passing : {ETIMEDOUT, EROFS, ESTALE, EINTR, ENOTCONN, ECONNABORTED, ENOSPC, EDQUOT, EBUSY}) {
    EXPECT_EQ(ParseOutcomeLine(OutcomeLine(passing, "later")).kind, Kind::kLater) << passing;
  }
  for (const int lasting : {EPERM, EACCES, ENOTEMPTY, EEXIST, EIO}) {
    EXPECT_EQ(ParseOutcomeLine(OutcomeLine(lasting, "no")).kind, Kind::kRefused) << lasting;
  }
}

TEST(TicketRunnerTest, StrangeLinesAreTriedAgain) {
  for (const char* line : {"", "0", "x y", " 0 ", "99999999999999 a"}) {
    EXPECT_EQ(ParseOutcomeLine(line).kind, Kind::kLater) << line;
  }
}

}  // namespace
}  // namespace cairnfs::daemon
