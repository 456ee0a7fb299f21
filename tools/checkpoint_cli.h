// The command lines of what cairnfs does with checkpoints.
#pragma once

#include "apply_policy.h"
#include "checkpoint_commands.h"
#include "command_line.h"
#include "keep_commands.h"
#include "retain_command.h"
#include "seal_commands.h"

namespace cairnfs::tools {

struct CheckpointCommands {
  LsCommand ls;
  LatestCommand latest;
  WatchCommand watch;
  PinCommand pin, unpin;
  HoldCommand hold;
  SealCommand seal, unseal;
  RetainCommand retain;
  ApplyPolicyCommand apply;
};

// The commands live as long as the parser, which refers to them.
void AddCheckpoints(CLI::App& app, CheckpointCommands& commands, int& exit_code);

}  // namespace cairnfs::tools
