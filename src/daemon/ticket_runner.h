// Makes a deferred commit by a process of its own, `cairnfs apply-commit`, which renames through the mount with the
// rights of who asked for it.
#pragma once

#include "base/context.h"
#include "daemon/child_processes.h"
#include "fs/tickets.h"

namespace cairnfs::daemon {

// Any thread.
class TicketRunner {
 public:
  explicit TicketRunner(RunnerOptions options) : options_(std::move(options)) {}

  // fs::TicketRunner. Returns some seconds after the context has expired at the latest (ChildProcesses::Run).
  fs::TicketOutcome Run(const Context& context, const fs::TicketJob& job);

 private:
  const RunnerOptions options_;
  ChildProcesses processes_;
};

// What `cairnfs apply-commit` tells in one line: errno, 0 for renamed, a space, and what went wrong.
std::string OutcomeLine(int error, const std::string& reason);
fs::TicketOutcome ParseOutcomeLine(const std::string& line);

}  // namespace cairnfs::daemon
