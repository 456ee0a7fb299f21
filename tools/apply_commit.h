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
  struct Place {
    uint64_t inode = 0;  // of the parent
    std::string parent;  // its path below the mount point
    std::string name;
  };
  Place from, to;
};

int RunApplyCommit(const ApplyCommitCommand& command);

}  // namespace cairnfs::tools
