#include "daemon/privileges.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace cairnfs::daemon {
namespace {

// For mounting, and the mount's read-ahead; for a data directory on a file system whose files all belong to some other
// user; for seeing whether a process that waits is being killed; for starting, and ending, a process that applies a
// user's policy, or makes a deferred commit, as that user (docs/decisions/retention.md).
constexpr std::array kKept = {CAP_SYS_ADMIN,  CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER,
                              CAP_SYS_PTRACE, CAP_SETUID,       CAP_SETGID,          CAP_KILL};

uint64_t SetOf(Guarding guarding) {
  uint64_t set = guarding == Guarding::kYes ? uint64_t{1} << CAP_LINUX_IMMUTABLE : 0;
  for (int capability : kKept) set |= uint64_t{1} << capability;
  return set;
}

// Both halves of each set, as capset(2) takes them.
struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};  // of this thread
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> halves{};
  bool Read() { return syscall(SYS_capget, &header, halves.data()) == 0; }
  bool Write() { return syscall(SYS_capset, &header, halves.data()) == 0; }
};

bool IsExcess(uint64_t kept, int capability) {
  return (kept >> capability & 1) == 0 && prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
}

// True when there was something to give up.
Result<bool> LeaveBoundingSet(uint64_t kept) {
  bool is_left = false;
  for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if (!IsExcess(kept, capability)) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return ErrnoError(errno, "cannot give up capabilities");
    is_left = true;
  }
  return is_left;
}

Status Restart(char** argv) {
  // By its name: that of the process follows it.
  std::array<char, PATH_MAX> path{};
  if (readlink("/proc/self/exe", path.data(), path.size() - 1) > 0) execv(path.data(), argv);
  return ErrnoError(errno, "cannot begin anew with fewer capabilities");
}

}  // namespace

Status DropPrivileges(char** argv, Guarding guarding) {
  if (geteuid() != 0) return {};
  const uint64_t kept_set = SetOf(guarding);
  bool is_less = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return ErrnoError(errno, "cannot set no_new_privs");
  Capabilities capabilities;
  if (!capabilities.Read()) return ErrnoError(errno, "cannot read the capabilities");
  if ((capabilities.halves[0].effective >> CAP_SETPCAP & 1) != 0) {
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_left, LeaveBoundingSet(kept_set));
    is_less |= is_left;
  }
  for (size_t half = 0; half < capabilities.halves.size(); ++half) {
    const auto kept = static_cast<uint32_t>(kept_set >> (32 * half));
    __user_cap_data_struct& sets = capabilities.halves[half];
    is_less |= ((sets.permitted | sets.inheritable) & ~kept) != 0;
    sets.effective &= kept;
    sets.permitted &= kept;
    sets.inheritable &= kept;
  }
  if (!capabilities.Write()) return ErrnoError(errno, "cannot give up capabilities");
  // With no_new_privs the program gets none of them back, whatever the bounding set.
  return is_less ? Restart(argv) : Status();
}

}  // namespace cairnfs::daemon
