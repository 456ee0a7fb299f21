// What `cairnfs watch --exec` hands to the shell.
#pragma once

#include <string>

#include "base/result.h"

namespace cairnfs::tools {

// The line as a command for `sh -c COMMAND sh PATH`: each {} is the word "$1". So a path is never read as a command,
// whatever its name. A {} after a backslash stays as it is. kInvalidArgument: one stands inside quotes, where its own
// would end them.
Result<std::string> ExecCommand(const std::string& line);

}  // namespace cairnfs::tools
