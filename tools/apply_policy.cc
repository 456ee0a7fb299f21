#include "apply_policy.h"

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
#include <vector>

#include "base/types.h"
#include "base/user.h"
#include "daemon/exit_codes.h"
#include "output.h"
#include "removal.h"
#include "retaining.h"
#include "retention/report.h"
#include "run_directory.h"

namespace cairnfs::tools {
namespace {

using retention::Report;

constexpr gid_t kNoGroup = 65534;  // of a user whom the system does not know
constexpr rlim_t kMemoryBytesMax = rlim_t{2} << 30;
constexpr int kNiceness = 10;

// Sanitizers map far more than they use.
bool HasLittleMapped() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  return static_cast<bool>(file >> pages) && pages * kPageBytes < kMemoryBytesMax / 2;
}

// What a user's directory makes this process do is to cost nobody else much.
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

Status BecomeMemberOfGroups(uid_t user) {
  std::vector<char> buffer(size_t{1} << 16);
  passwd entry = {};
  passwd* found = nullptr;
  getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found);
  const gid_t group = found != nullptr ? entry.pw_gid : kNoGroup;
  const bool is_member = found != nullptr ? initgroups(entry.pw_name, group) == 0 : setgroups(0, nullptr) == 0;
  if (is_member && setresgid(group, group, group) == 0) return {};
  return ErrnoError(errno, "this process may not take the groups of " + UserName(user));
}

// For good, and with none of the capabilities that it had.
Status BecomeUser(uid_t user) {
  if (geteuid() == user) return {};
  if (geteuid() != 0) {
    return MakeError(ErrorCode::kPermission,
                     fmt::format("the daemon runs as {}, and so can remove nothing for {}, whose directory it is",
                                 UserName(geteuid()), UserName(user)));
  }
  CAIRNFS_RETURN_IF_ERROR(BecomeMemberOfGroups(user));
  if (setresuid(user, user, user) != 0) return ErrnoError(errno, "this process may not become " + UserName(user));
  if (setuid(0) == 0) return MakeError(ErrorCode::kFailed, "this process could become root again");
  return {};
}

Status EndWithDaemon(pid_t daemon) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return ErrnoError(errno, "cannot ask to end with the daemon");
  return getppid() == daemon ? Status() : Status(MakeError(ErrorCode::kInterrupted, "the daemon has ended"));
}

void TellLine(const std::string& line) { Print(line + "\n"); }

void TellFate(const Fate& fate) {
  if (fate.removed) TellLine(retention::RemovedLine({fate.name, fate.reason}));
  if (fate.goes && !fate.removed) TellLine(retention::FailedLine({fate.name, fate.reason}));
}

Status Apply(const ApplyPolicyCommand& command, Report& end) {
  CAIRNFS_ASSIGN_OR_RETURN(const RunDirectory run,
                           RunDirectory::EnterBelow(command.mount_point, command.path, command.inode));
  if (run.owner() != command.owner) return MakeError(ErrorCode::kStale, "it has another owner by now");
  CAIRNFS_ASSIGN_OR_RETURN(const auto policy, run.ReadPolicy());
  end.has_policy = policy.has_value();
  if (!policy) return {};
  const Status taken_up = TakeUpLeft(run.owner(), end.notes);
  CAIRNFS_ASSIGN_OR_RETURN(Fates fates, JudgeAll(*policy, run.OnlyOf()));
  // A policy that is changed or taken away meanwhile does not go on.
  const auto is_wanted = [&] {
    const auto still = run.ReadPolicy();
    return still.ok() && *still == policy;
  };
  const Status removed =
      RemoveAll(*policy, fates,
                {.judge = [&] { return JudgeAll(*policy, run.OnlyOf()); }, .is_wanted = is_wanted, .tell = TellFate});
  end.stays_for_now = fates.stays_for_now;
  end.notes.insert(end.notes.end(), fates.notes.begin(), fates.notes.end());
  if (fates.next) end.next = fates.next->seconds;
  for (const Fate& fate : fates.lines) end.stay_count += fate.removed ? 0 : 1;
  return taken_up.ok() ? removed : taken_up;
}

}  // namespace

int RunApplyPolicy(const ApplyPolicyCommand& command) {
  const pid_t daemon = getppid();
  LimitItself();
  Report end;
  Status done = BecomeUser(command.owner);
  if (done.ok()) done = EndWithDaemon(daemon);
  if (done.ok()) done = Apply(command, end);
  if (!done.ok()) end.error = done.error().message;
  TellLine(retention::EndLine(end));
  return done.ok() ? daemon::kExitDone : daemon::ExitCodeOf(done.error());
}

}  // namespace cairnfs::tools
