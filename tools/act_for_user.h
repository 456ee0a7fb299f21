// For the processes that a daemon starts to do something through its mount with the rights of a user.
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "base/result.h"

namespace cairnfs::tools {

struct Groups {
  gid_t main = 0;
  std::vector<gid_t> others;
};
struct ActingUser {
  uid_t uid = 0;
  std::optional<Groups> groups = {};  // nullopt: those that the system knows of the user
};

// What a user makes this process do is to cost nobody else much.
void LimitItself();
// For good, and with none of the capabilities that it had; root keeps those. A process that is not root keeps its
// groups.
Status BecomeUser(const ActingUser& acting);
// Has this process end once the daemon has, whose id that is. kInterrupted: it has already.
Status EndWithDaemon(pid_t daemon);

}  // namespace cairnfs::tools
