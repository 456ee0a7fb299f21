// Attributes, extended attributes, listings.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../support/random.h"
#include "world.h"

namespace cairnfs::testing {
namespace {

std::array<timespec, 2> TimesOf(const Operation& operation) {
  auto time_of = [](uint64_t bits) {
    if (bits % 7 == 0) return timespec{0, UTIME_NOW};
    if (bits % 7 == 1) return timespec{0, UTIME_OMIT};
    // From 1935 to 2106: ext4 keeps 34 bits of seconds.
    int64_t seconds = static_cast<int64_t>(bits >> 8 & 0x0fffffffff) % 5400000000 - 1100000000;
    return timespec{seconds, static_cast<long>(bits % 1000000000)};
  };
  return {time_of(operation.variant), time_of(MixBits(operation.variant))};
}

// The times that were set to a value come back as that value.
void CheckTimes(const std::array<timespec, 2>& wanted, const struct stat& info, Outcome& outcome) {
  const timespec found[2] = {info.st_atim, info.st_mtim};
  for (size_t i = 0; i < 2; ++i) {
    if (wanted[i].tv_nsec == UTIME_NOW || wanted[i].tv_nsec == UTIME_OMIT) continue;
    if (wanted[i].tv_sec != found[i].tv_sec || wanted[i].tv_nsec != found[i].tv_nsec) {
      outcome.data += i == 0 ? "atime is not what was set " : "mtime is not what was set ";
    }
  }
}

std::string SortedNames(const char* list, ssize_t size) {
  std::vector<std::string> names;
  for (const char* name = list; name < list + size; name += strlen(name) + 1) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  return text;
}

}  // namespace

Outcome World::ExecuteAttributes(const Operation& operation) {
  const char* a = operation.a.c_str();
  std::string path = PathOf(operation.a);
  int fd = slots_[operation.slot];
  switch (operation.kind) {
    case Kind::kChmod: return FromCall(fchmodat(root_fd_, a, operation.mode, 0));
    case Kind::kFchmod: return FromCall(fchmod(fd, operation.mode));
    case Kind::kChown:
      return FromCall(fchownat(root_fd_, a, static_cast<uid_t>(operation.offset), static_cast<gid_t>(operation.length),
                               operation.flags));
    case Kind::kUtimens:
    case Kind::kFutimens: {
      auto times = TimesOf(operation);
      bool by_path = operation.kind == Kind::kUtimens;
      Outcome outcome =
          FromCall(by_path ? utimensat(root_fd_, a, times.data(), AT_SYMLINK_NOFOLLOW) : futimens(fd, times.data()));
      struct stat info;
      if (outcome.result == 0 && (by_path ? fstatat(root_fd_, a, &info, AT_SYMLINK_NOFOLLOW) : fstat(fd, &info)) == 0) {
        CheckTimes(times, info, outcome);
      }
      return outcome;
    }
    case Kind::kSetxattr: {
      std::string value = MakeContent(operation.content, operation.length);
      return FromCall(lsetxattr(path.c_str(), operation.b.c_str(), value.data(), value.size(), operation.flags));
    }
    case Kind::kGetxattr: {
      char value[4096];
      size_t room = operation.variant % 4 == 0 ? 0 : operation.variant % 4 == 1 ? 8 : sizeof(value);
      Outcome outcome = FromCall(lgetxattr(path.c_str(), operation.b.c_str(), value, room));
      if (outcome.result > 0 && room > 0) outcome.data.assign(value, outcome.result);
      return outcome;
    }
    case Kind::kListxattr: {
      char list[4096];
      Outcome outcome = FromCall(llistxattr(path.c_str(), list, operation.variant % 4 == 0 ? 0 : sizeof(list)));
      if (outcome.result > 0 && operation.variant % 4 != 0) outcome.data = SortedNames(list, outcome.result);
      return outcome;
    }
    case Kind::kRemovexattr: return FromCall(lremovexattr(path.c_str(), operation.b.c_str()));
    default: abort();
  }
}

Outcome World::ExecuteListing(const Operation& operation) {
  const char* a = operation.a.c_str();
  switch (operation.kind) {
    case Kind::kStat: {
      struct stat info;
      Outcome outcome = FromCall(fstatat(root_fd_, a, &info, operation.flags));
      if (outcome.result == 0) outcome.data = StatText(info);
      if (outcome.result == 0 && is_cairnfs_ && S_ISDIR(info.st_mode) && info.st_nlink != 1) {
        outcome.data += " a directory has a link count other than 1";
      }
      return outcome;
    }
    case Kind::kAccess: return FromCall(faccessat(root_fd_, a, static_cast<int>(operation.variant % 8), AT_EACCESS));
    case Kind::kStatfs: {
      struct statvfs space;
      Outcome outcome = FromCall(statvfs(PathOf(operation.a).c_str(), &space));
      if (outcome.result == 0 && (space.f_namemax != 255 || space.f_blocks == 0 || space.f_bfree > space.f_blocks)) {
        outcome.data = "statfs makes no sense";
      }
      return outcome;
    }
    case Kind::kReaddir: {
      int fd = openat(root_fd_, a, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0) return FromCall(-1);
      close(fd);
      Outcome outcome;
      for (const std::string& name : ListNames(root_fd_, operation.a)) outcome.data += name + "\n";
      return outcome;
    }
    default: abort();
  }
}

}  // namespace cairnfs::testing
