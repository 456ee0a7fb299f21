// Starts cairnfsd and waits until its mount is ready.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/notify.h"

namespace cairnfs::tools {

// Where cairnfsd lies: beside this program, in ../sbin or ../bin of it, where it was installed, or on PATH.
Result<std::string> FindDaemon();

// Starts cairnfsd in the background with `arguments` and returns what it reports: ready, or the reason why it is not.
Result<daemon::StartReport> StartInBackground(const std::vector<std::string>& arguments);
// Becomes cairnfsd. Returns only on failure.
Error BecomeDaemon(const std::vector<std::string>& arguments);

}  // namespace cairnfs::tools
