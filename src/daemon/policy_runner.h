// Applies the policy of a directory by a process of its own, `cairnfs apply-policy`, which goes through the mount with
// the rights of the directory's owner: so the kernel refuses what that user could not do (docs/decisions/retention.md).
#pragma once

#include <string>

#include "base/context.h"
#include "daemon/child_processes.h"
#include "fs/policies.h"
#include "retention/report.h"

namespace cairnfs::daemon {

// Any thread.
class PolicyRunner {
 public:
  explicit PolicyRunner(RunnerOptions options) : options_(std::move(options)) {}

  // fs::PolicyRunner. Returns some seconds after the context has expired at the latest (ChildProcesses::Run).
  retention::Report Run(const Context& context, const fs::PolicyJob& job);

 private:
  const RunnerOptions options_;
  ChildProcesses processes_;
};

}  // namespace cairnfs::daemon
