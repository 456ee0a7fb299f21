// Commits that failed, as the status tells them.
#pragma once

#include <span>
#include <string_view>

#include "control.pb.h"
#include "meta/refused_commit.h"

namespace cairnfs::control {

// Adds the failures of directories at, above or below `path`, in their order; empty: all. `path` begins below the root,
// as theirs do. A failure whose path is not known ("#" and a number, or "...", instead of its beginning) may lie
// anywhere.
void AddFailures(std::span<const meta::RefusedCommit> failures, std::string_view path, StatusReply& reply);

}  // namespace cairnfs::control
