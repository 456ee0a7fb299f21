#include "world.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "differences.h"

namespace cairnfs::testing {

AsUser::AsUser(uint32_t uid) : uid_(uid) {
  if (uid_ == 0) return;
  gid_t group = 2000;  // a group that both users are in
  if (setgroups(1, &group) != 0 || setegid(uid_) != 0 || seteuid(uid_) != 0) {
    perror("becoming another user");
    abort();
  }
}

AsUser::~AsUser() {
  if (uid_ == 0) return;
  int saved = errno;
  if (seteuid(0) != 0 || setegid(0) != 0 || setgroups(0, nullptr) != 0) abort();
  errno = saved;
}

Outcome FromCall(int64_t result) {
  Outcome outcome;
  outcome.result = result;
  if (result < 0) outcome.error = errno;
  return outcome;
}

World::World(const std::string& own, const std::string& shared, bool is_cairnfs, const SharedRole& role)
    : root_fd_(open(own.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      shared_fd_(open(shared.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      root_path_(own),
      is_cairnfs_(is_cairnfs),
      role_(role) {
  if (root_fd_ < 0 || shared_fd_ < 0) {
    perror(own.c_str());
    exit(2);
  }
  slots_.fill(-1);
}

World::~World() {
  CloseSlots();
  close(root_fd_);
  close(shared_fd_);
}

void World::CloseSlots() {
  for (int& fd : slots_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

Outcome World::Execute(const Operation& operation) {
  AsUser user(operation.uid);
  switch (operation.kind) {
    case Kind::kOpen:
    case Kind::kClose:
    case Kind::kRead:
    case Kind::kPread:
    case Kind::kReadv:
    case Kind::kWrite:
    case Kind::kPwrite:
    case Kind::kWritev:
    case Kind::kSeek:
    case Kind::kFsync:
    case Kind::kFdatasync:
    case Kind::kFsyncDirectory: return ExecuteData(operation);
    case Kind::kSeekHole:
    case Kind::kFtruncate:
    case Kind::kTruncate:
    case Kind::kFallocate:
    case Kind::kPunchHole:
    case Kind::kZeroRange:
    case Kind::kCopyRange:
    case Kind::kSendfile: return ExecuteSpace(operation);
    case Kind::kRename:
    case Kind::kRenameDirectory:
    case Kind::kRenameNoreplace:
    case Kind::kRenameExchange:
    case Kind::kReplace:
    case Kind::kLink:
    case Kind::kSymlink:
    case Kind::kReadlink:
    case Kind::kMkfifo:
    case Kind::kMksocket:
    case Kind::kMknod:
    case Kind::kMkdir:
    case Kind::kRmdir:
    case Kind::kUnlink:
    case Kind::kUnlinkOpen:
    case Kind::kRemoveTree: return ExecuteNames(operation);
    case Kind::kChmod:
    case Kind::kFchmod:
    case Kind::kChown:
    case Kind::kUtimens:
    case Kind::kFutimens:
    case Kind::kSetxattr:
    case Kind::kGetxattr:
    case Kind::kListxattr:
    case Kind::kRemovexattr: return ExecuteAttributes(operation);
    case Kind::kStat:
    case Kind::kAccess:
    case Kind::kStatfs:
    case Kind::kReaddir: return ExecuteListing(operation);
    case Kind::kMmapShared:
    case Kind::kMmapPrivate:
    case Kind::kMmapRead: return ExecuteMapping(operation);
    case Kind::kFlock:
    case Kind::kOfdLock:
    case Kind::kPosixLock: return ExecuteLocks(operation);
    case Kind::kSharedAppend:
    case Kind::kSharedBlock:
    case Kind::kSharedName:
    case Kind::kSharedCount:
    case Kind::kSharedMkdir:
    case Kind::kSharedMap: return ExecuteShared(operation);
    case Kind::kReopenUnlinked:
    case Kind::kTmpfile:
    case Kind::kLongName:
    case Kind::kHugeOffset: return ExecuteSpecial(operation);
    case Kind::kCount: break;
  }
  abort();
}

std::vector<std::string> ListNames(int directory_fd, const std::string& path) {
  std::vector<std::string> names;
  int fd = openat(directory_fd, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return names;
  DIR* directory = fdopendir(fd);
  while (dirent* entry = readdir(directory)) {
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    static constexpr char kLetters[] = "?fc?d?b?-?l?s?w";
    names.push_back(name + '/' + kLetters[entry->d_type & 15]);
  }
  closedir(directory);
  std::sort(names.begin(), names.end());
  return names;
}

std::string StatText(const struct stat& info) {
  char text[256];
  bool is_directory = S_ISDIR(info.st_mode);
  std::snprintf(text, sizeof(text), "mode %o uid %u gid %u links %lu size %lld rdev %lu", info.st_mode, info.st_uid,
                info.st_gid, is_directory ? kNotCompared : static_cast<unsigned long>(info.st_nlink),
                is_directory ? -1LL : static_cast<long long>(info.st_size), static_cast<unsigned long>(info.st_rdev));
  return text;
}

}  // namespace cairnfs::testing
