// `cairnfs apply-commit`, which daemons start: makes a deferred commit, with the rights of who asked for it and no
// others, and tells on stdout what came of it (daemon/ticket_runner.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairnfs::tools {

struct ApplyCommitCommand {
  std::string mount_point;
  uint64_t inode = 0;  // what is to be renamed
  uint32_t user = 0, group = 0;
  std::vector<uint32_t> groups;
  std::string from_parent, from_name;  // parents as paths below the mount point
  std::string to_parent, to_name;
};

int RunApplyCommit(const ApplyCommitCommand& command);

}  // namespace cairnfs::tools
