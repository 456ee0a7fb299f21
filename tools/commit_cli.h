// The command lines of commits.
#pragma once

#include "apply_commit.h"
#include "command_line.h"
#include "commit_command.h"

namespace cairnfs::tools {

struct CommitCommands {
  CommitCommand commit;
  ApplyCommitCommand apply;
};

// The commands live as long as the parser, which refers to them.
void AddCommits(CLI::App& app, CommitCommands& commands, int& exit_code);

}  // namespace cairnfs::tools
