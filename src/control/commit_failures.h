// What the status tells of commits that failed.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/filesystem.h"

namespace cairnfs::control {

// Of the failures those of directories at, above or below `path`, which like theirs begins below the root; empty: all.
// One whose path is not known ("#" and a number instead of its beginning) may lie anywhere. In their order, as
// "2026-11-21 20:41:25 UTC: DIRECTORY was not renamed: CAUSE; CAUSE".
std::vector<std::string> DescribeFailures(std::span<const fs::CommitFailure> failures, std::string_view path);

}  // namespace cairnfs::control
