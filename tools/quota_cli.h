// The command lines of `cairnfs quota`.
#pragma once

#include "command_line.h"
#include "quota_command.h"

namespace cairnfs::tools {

// The command lives as long as the parser, which refers to it.
void AddQuota(CLI::App& app, QuotaCommand& command, int& exit_code);

}  // namespace cairnfs::tools
