#include "apply_commit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "act_for_user.h"
#include "base/printable.h"
#include "daemon/exit_codes.h"
#include "daemon/ticket_runner.h"
#include "locate.h"
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

using Place = ApplyCommitCommand::Place;

// Past no symbolic link and no other mount. Below zero: errno says why. It is open until this process ends.
int EnterBelowMount(int root, const std::string& path) {
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC | O_DIRECTORY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS;
  return static_cast<int>(syscall(SYS_openat2, root, path.c_str(), &how, sizeof how));
}

// The daemon looks again where it is, and what has become of it, after ESTALE. Names above are not told: the user may
// no longer see them.
Failure Enter(int root, const Place& place, int& entered) {
  entered = EnterBelowMount(root, place.parent);
  struct stat info = {};
  if (entered < 0 || fstat(entered, &info) != 0) {
    Failure failure = Failed(fmt::format("cannot enter the directory of '{}'", Printable(place.name)));
    if (failure.error == ENOENT || failure.error == ENOTDIR) failure.error = ESTALE;
    return failure;
  }
  if (info.st_ino == place.inode) return {};
  return {ESTALE, fmt::format("the directory of '{}' was renamed meanwhile", Printable(place.name))};
}

// What has the name. 0: nothing; errno is ENOENT, or says why it is not known.
uint64_t InodeAt(int parent, const std::string& name) {
  struct stat info = {};
  return fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 ? info.st_ino : 0;
}

Failure Rename(const ApplyCommitCommand& command, int root) {
  const auto& [from, to] = std::tie(command.from, command.to);
  int from_parent = -1, to_parent = -1;
  if (Failure failure = Enter(root, from, from_parent); failure.error != 0) return failure;
  if (Failure failure = Enter(root, to, to_parent); failure.error != 0) return failure;
  const uint64_t there = InodeAt(from_parent, from.name);
  if (there == 0 && errno != ENOENT) return Failed(fmt::format("cannot look at '{}'", Printable(from.name)));
  if (there != command.inode) return {ESTALE, "it was renamed meanwhile"};
  if (renameat(from_parent, from.name.c_str(), to_parent, to.name.c_str()) != 0) {
    if (errno == EROFS && !IsInReadOnlyMount(root)) {
      return {EPERM, fmt::format("'{}' or a directory above one of its names is sealed", Printable(from.name))};
    }
    return Failed(fmt::format("cannot rename '{}' to '{}'", Printable(from.name), Printable(to.name)));
  }
  // rename(2) goes by the name: who may rename beside it can have put another in its place just before.
  const uint64_t renamed = InodeAt(to_parent, to.name);
  if (renamed == command.inode) return {};
  if (renamed == 0) return {ESTALE, "it was renamed or removed at once"};
  return {EPERM,
          fmt::format("another directory was put in the place of '{}' meanwhile: '{}' is not the one that was to "
                      "get that name",
                      Printable(from.name), Printable(to.name))};
}

// As whoever the daemon runs as: the way to the mount point need not be open to the user.
int OpenMount(const std::string& mount_point) {
  const int root = open(mount_point.c_str(), O_PATH | O_CLOEXEC | O_DIRECTORY);
  struct statfs info = {};
  if (root < 0 || fstatfs(root, &info) != 0) return -1;
  if (info.f_type == FUSE_SUPER_MAGIC) return root;
  errno = ENOTCONN;  // it was unmounted
  return -1;
}

Failure Apply(const ApplyCommitCommand& command, pid_t daemon) {
  const int root = OpenMount(command.mount_point);
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
