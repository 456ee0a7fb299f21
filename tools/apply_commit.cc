#include "apply_commit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "act_for_user.h"
#include "base/printable.h"
#include "daemon/exit_codes.h"
#include "daemon/ticket_runner.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

// What went wrong, and the errno that says whether that may pass.
struct Failure {
  int error = 0;
  std::string reason = {};
};

Failure Failed(const std::string& what) {
  const int error = errno;
  return {error, what + ": " + std::strerror(error)};
}

// Past no symbolic link and no other mount. Below zero: errno says why. It is open until this process ends.
int EnterBelowMount(int root, const std::string& path) {
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC | O_DIRECTORY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS;
  return static_cast<int>(syscall(SYS_openat2, root, path.c_str(), &how, sizeof how));
}

// The daemon looks again where it is, and what has become of it.
Failure CannotEnter(const std::string& path) {
  Failure failure = Failed(fmt::format("cannot enter '{}'", Printable(path)));
  if (failure.error == ENOENT || failure.error == ENOTDIR) failure.error = ESTALE;
  return failure;
}

Failure Rename(const ApplyCommitCommand& command, int root) {
  const int from = EnterBelowMount(root, command.from_parent);
  if (from < 0) return CannotEnter(command.from_parent);
  const int to = EnterBelowMount(root, command.to_parent);
  if (to < 0) return CannotEnter(command.to_parent);
  struct stat info = {};
  const bool is_there = fstatat(from, command.from_name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_there && errno != ENOENT) return Failed(fmt::format("cannot look at '{}'", Printable(command.from_name)));
  if (!is_there || info.st_ino != command.inode) return {ESTALE, "it was renamed meanwhile"};
  if (renameat(from, command.from_name.c_str(), to, command.to_name.c_str()) == 0) return {};
  return Failed(fmt::format("cannot rename '{}' to '{}'", Printable(command.from_name), Printable(command.to_name)));
}

Failure Apply(const ApplyCommitCommand& command, pid_t daemon) {
  // As whoever the daemon runs as: the way to the mount point need not be open to the user.
  const int root = open(command.mount_point.c_str(), O_PATH | O_CLOEXEC | O_DIRECTORY);
  if (root < 0) return Failed("cannot open " + command.mount_point);
  Groups groups{.main = command.group, .others = {command.groups.begin(), command.groups.end()}};
  Status ready = BecomeUser({.uid = command.user, .groups = std::move(groups)});
  if (!ready.ok()) return {EPERM, ready.error().message};
  ready = EndWithDaemon(daemon);
  if (!ready.ok()) return {EINTR, ready.error().message};
  return Rename(command, root);
}

}  // namespace

int RunApplyCommit(const ApplyCommitCommand& command) {
  const pid_t daemon = getppid();
  LimitItself();
  const Failure failure = Apply(command, daemon);
  Print(daemon::OutcomeLine(failure.error, failure.reason) + "\n");
  return failure.error == 0 ? daemon::kExitDone : daemon::kExitFailed;
}

}  // namespace cairnfs::tools
