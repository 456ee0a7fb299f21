#include "act_for_user.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/types.h"
#include "base/user.h"

namespace cairnfs::tools {
namespace {

constexpr gid_t kNoGroup = 65534;  // of a user whom the system does not know
constexpr rlim_t kMemoryBytesMax = rlim_t{2} << 30;
constexpr int kNiceness = 10;

// Sanitizers map far more than they use.
bool HasLittleMapped() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  return static_cast<bool>(file >> pages) && pages * kPageBytes < kMemoryBytesMax / 2;
}

Status BecomeMemberOfGroupsOf(uid_t user) {
  std::vector<char> buffer(size_t{1} << 16);
  passwd entry = {};
  passwd* found = nullptr;
  getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
  const gid_t group = found != nullptr ? entry.pw_gid : kNoGroup;
  const bool is_member = found != nullptr ? initgroups(entry.pw_name, group) == 0 : setgroups(0, nullptr) == 0;
  if (is_member && setresgid(group, group, group) == 0) return {};
  return ErrnoError(errno, "this process may not take the groups of " + UserName(user));
}

// What the process had that asked for it.
Status BecomeMemberOf(const Groups& groups) {
  const bool is_member = setgroups(groups.others.size(), groups.others.data()) == 0;
  if (is_member && setresgid(groups.main, groups.main, groups.main) == 0) return {};
  return ErrnoError(errno, "this process may not take the groups of who asked");
}

}  // namespace

void LimitItself() {
  const rlimit memory{kMemoryBytesMax, kMemoryBytesMax}, none{0, 0};
  if (HasLittleMapped()) static_cast<void>(setrlimit(RLIMIT_AS, &memory) == 0);
  static_cast<void>(setrlimit(RLIMIT_CORE, &none) == 0);
  static_cast<void>(setpriority(PRIO_PROCESS, 0, kNiceness) == 0);
  // It may be the first to go when memory is short, unlike the daemon.
  const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  static_cast<void>(write(file, "500", 3) == 3);
  close(file);
}

Status BecomeUser(const ActingUser& acting) {
  const uid_t user = acting.uid;
  if (geteuid() != 0 && geteuid() == user) return {};  // with the groups that the daemon has: it may take no others
  if (geteuid() == 0 && user == 0) return acting.groups ? BecomeMemberOf(*acting.groups) : Status();
  if (geteuid() != 0) {
    return MakeError(ErrorCode::kPermission, fmt::format("the daemon runs as {}, and so can change nothing for {}",
                                                         UserName(geteuid()), UserName(user)));
  }
  CAIRNFS_RETURN_IF_ERROR(acting.groups ? BecomeMemberOf(*acting.groups) : BecomeMemberOfGroupsOf(user));
  if (setresuid(user, user, user) != 0) return ErrnoError(errno, "this process may not become " + UserName(user));
  if (setuid(0) == 0) return MakeError(ErrorCode::kFailed, "this process could become root again");
  return {};
}

Status EndWithDaemon(pid_t daemon) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return ErrnoError(errno, "cannot ask to end with the daemon");
  return getppid() == daemon ? Status() : Status(MakeError(ErrorCode::kInterrupted, "the daemon has ended"));
}

}  // namespace cairnfs::tools
