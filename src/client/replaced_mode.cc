#include "client/replaced_mode.h"

#include <linux/limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>

namespace cairnfs::client {
namespace {

constexpr char kAccessList[] = "system.posix_acl_access";

enum class MayTake { kNo, kYes };

// False: the file has a list that the other one cannot have, or may not.
bool TakeAccessList(const std::string& path, int descriptor, MayTake may_take) {
  std::array<char, XATTR_SIZE_MAX> list;
  const ssize_t bytes = getxattr(path.c_str(), kAccessList, list.data(), list.size());
  if (bytes > 0) {
    return may_take == MayTake::kYes &&
           fsetxattr(descriptor, kAccessList, list.data(), static_cast<size_t>(bytes), 0) == 0;
  }
  // One that its directory gave it may name people whom the other file does not let in.
  (void)fremovexattr(descriptor, kAccessList);
  return true;
}

}  // namespace

void TakeModeOf(const std::string& path, int descriptor) {
  struct stat replaced {};
  struct stat made {};
  if (stat(path.c_str(), &replaced) != 0 || !S_ISREG(replaced.st_mode)) return;
  if (fstat(descriptor, &made) != 0) return;
  mode_t mode = replaced.st_mode & 0777;
  const bool is_own = made.st_uid == replaced.st_uid;
  const bool has_group =
      made.st_gid == replaced.st_gid || fchown(descriptor, static_cast<uid_t>(-1), replaced.st_gid) == 0;
  // Whoever made the other file has no say in who may write to this one.
  if (!is_own) mode &= 0755;
  if (!has_group) {
    // Whoever is in either group may do what both the group and all others could.
    const mode_t shared = (mode >> 3) & mode & 07;
    mode = (mode & 0700) | shared << 3 | shared;
  }
  if (!TakeAccessList(path, descriptor, is_own && has_group ? MayTake::kYes : MayTake::kNo)) mode &= 0700;
  (void)fchmod(descriptor, mode);
}

}  // namespace cairnfs::client
