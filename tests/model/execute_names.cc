// Making, moving and removing names.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "../support/random.h"
#include "world.h"

namespace cairnfs::testing {
namespace {

// As `rm -r`, in sorted order so that both sides do the same. The first error ends it.
int RemoveTree(int root, const std::string& path) {
  struct stat info;
  if (fstatat(root, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  if (!S_ISDIR(info.st_mode)) return unlinkat(root, path.c_str(), 0);
  for (const std::string& name : ListNames(root, path)) {
    if (RemoveTree(root, path + "/" + name.substr(0, name.rfind('/'))) != 0) return -1;
  }
  return unlinkat(root, path.c_str(), AT_REMOVEDIR);
}

}  // namespace

// What editors and every careful trainer do: a new file beside the old one, written, sometimes synced, renamed over it.
Outcome World::ReplaceByRename(const Operation& operation) {
  std::string temporary = operation.a + ".tmp~";
  int fd = openat(root_fd_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, operation.mode);
  if (fd < 0) return FromCall(-1);
  std::string content = MakeContent(operation.content, operation.length);
  Outcome outcome = FromCall(write(fd, content.data(), content.size()));
  if (operation.variant % 4 == 0) fsync(fd);
  if (operation.variant % 2 == 0) close(fd);
  struct stat before, after;
  fstatat(root_fd_, temporary.c_str(), &before, AT_SYMLINK_NOFOLLOW);
  if (renameat(root_fd_, temporary.c_str(), root_fd_, operation.a.c_str()) != 0) {
    outcome = FromCall(-1);
    unlinkat(root_fd_, temporary.c_str(), 0);
  } else if (fstatat(root_fd_, operation.a.c_str(), &after, AT_SYMLINK_NOFOLLOW) != 0 ||
             before.st_ino != after.st_ino || before.st_dev != after.st_dev) {
    outcome.data = "the inode changed in a rename";
  }
  if (operation.variant % 2 != 0) close(fd);
  return outcome;
}

Outcome World::ExecuteNames(const Operation& operation) {
  const char* a = operation.a.c_str();
  const char* b = operation.b.c_str();
  switch (operation.kind) {
    case Kind::kRename:
    case Kind::kRenameDirectory: return FromCall(renameat(root_fd_, a, root_fd_, b));
    case Kind::kRenameNoreplace: return FromCall(renameat2(root_fd_, a, root_fd_, b, RENAME_NOREPLACE));
    case Kind::kRenameExchange: return FromCall(renameat2(root_fd_, a, root_fd_, b, RENAME_EXCHANGE));
    case Kind::kReplace: return ReplaceByRename(operation);
    case Kind::kLink: return FromCall(linkat(root_fd_, a, root_fd_, b, operation.flags));
    case Kind::kSymlink: return FromCall(symlinkat(a, root_fd_, b));
    case Kind::kReadlink: {
      char target[5000];
      size_t room = operation.variant % 8 == 0 ? 3 : sizeof(target);
      Outcome outcome = FromCall(readlinkat(root_fd_, a, target, room));
      if (outcome.result > 0) outcome.data.assign(target, outcome.result);
      return outcome;
    }
    case Kind::kMkfifo: return FromCall(mknodat(root_fd_, a, S_IFIFO | operation.mode, 0));
    case Kind::kMksocket: return FromCall(mknodat(root_fd_, a, S_IFSOCK | operation.mode, 0));
    case Kind::kMknod: return FromCall(mknodat(root_fd_, a, S_IFREG | operation.mode, 0));
    case Kind::kMkdir: return FromCall(mkdirat(root_fd_, a, operation.mode));
    case Kind::kRmdir: return FromCall(unlinkat(root_fd_, a, AT_REMOVEDIR));
    case Kind::kUnlink: return FromCall(unlinkat(root_fd_, a, 0));
    case Kind::kUnlinkOpen: {
      int fd = openat(root_fd_, a, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
      if (fd < 0) return FromCall(-1);
      Outcome outcome = FromCall(unlinkat(root_fd_, a, 0));
      if (slots_[operation.slot] >= 0) close(slots_[operation.slot]);
      slots_[operation.slot] = fd;
      return outcome;
    }
    case Kind::kRemoveTree: return FromCall(RemoveTree(root_fd_, operation.a));
    default: abort();
  }
}

}  // namespace cairnfs::testing
