// Commits that failed, as the status tells them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/filesystem.h"

namespace cairnfs::control {

// The failures of directories at, above or below `path`; empty: all. `path` begins below the root, as theirs do. A
// failure whose path is not known ("#" and a number instead of its beginning) may lie anywhere. In their order, as
// "2026-11-21 20:41:25 UTC: DIRECTORY was not renamed: CAUSE; CAUSE".
std::vector<std::string> DescribeFailures(std::span<const fs::CommitFailure> failures, std::string_view path);

}  // namespace cairnfs::control
