// Running other programs from a test.
#pragma once

#include <string>
#include <vector>

namespace cairnfs::testing {

struct CommandResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  std::string output;  // stdout and stderr
};

// Waits for the end. No shell is involved.
CommandResult RunCommand(const std::vector<std::string>& arguments);
// As above; prints the command and its output, and ends the process with status 2, when it fails.
std::string MustRun(const std::vector<std::string>& arguments);

}  // namespace cairnfs::testing
