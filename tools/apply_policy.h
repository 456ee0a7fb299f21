// `cairnfs apply-policy`, which daemons start: applies the policy of one directory once, with the rights of its owner
// and no others, and tells on stdout what comes of it (retention/report.h).
#pragma once

#include <cstdint>
#include <string>

namespace cairnfs::tools {

struct ApplyPolicyCommand {
  std::string mount_point;
  std::string path;  // of the directory, below the mount point
  uint64_t inode = 0;
  uint32_t owner = 0;
};

int RunApplyPolicy(const ApplyPolicyCommand& command);

}  // namespace cairnfs::tools
