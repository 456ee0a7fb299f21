// `cairnfs retain`: which checkpoints of a run stay.
#pragma once

#include <string>
#include <vector>

namespace cairnfs::tools {

struct RetainCommand {
  std::string directory;
  // Of the policy, as they were given; empty: not at all.
  std::string keep_last, keep_every, keep_for, match, metrics_file;
  std::vector<std::string> keep_best, keep_inside, abandoned;
  bool keep_without_metric = false;
  // At most one; none: sets the policy.
  bool show = false, off = false, dry_run = false, now = false;
  bool json = false;
};

int RunRetain(const RetainCommand& command);

}  // namespace cairnfs::tools
