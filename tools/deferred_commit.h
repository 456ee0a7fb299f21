// `cairnfs commit --async` and `--wait`.
#pragma once

#include <string>

#include "commit_command.h"

namespace cairnfs::tools {

// Takes a ticket, and prints it.
int RunDeferCommit(const CommitCommand& command);
// Waits for the ticket's commit.
int RunAwaitTicket(const CommitCommand& command);

}  // namespace cairnfs::tools
