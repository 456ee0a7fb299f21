#include "fuse/mount_point.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/log.h"
#include "base/mount_info.h"
#include "fuse/fusermount.h"
#include "fuse/server.h"

namespace cairnfs::fuse {
namespace {

constexpr int kStackedMountsMax = 8;
constexpr int kNamedProcessesMax = 3;
// Who looks into a directory now and then, as `cairnfs watch` and monitors do, keeps a mount busy only for a moment.
constexpr std::chrono::milliseconds kBetweenTries{100};
constexpr int kTriesWhileBusy = 20;

// `error_number`, when given, takes the errno of a failure.
Result<std::string> RealPath(const std::string& path, int* error_number = nullptr) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) {
    const int error = errno;
    if (error_number != nullptr) *error_number = error;
    return ErrnoError(error, path);
  }
  std::string result = resolved;
  free(resolved);
  return result;
}

// Asks by statfs(2), which the kernel always passes on. It would answer stat(2) of a dead mount from its cache for a
// second.
bool IsDead(const std::string& path) {
  struct statfs answer;
  return statfs(path.c_str(), &answer) != 0 && (errno == ENOTCONN || errno == ECONNABORTED);
}

// Names of some of what is in it, quoted for a terminal.
std::string SomeOf(DIR* directory) {
  constexpr int kNamedMax = 3;
  std::string names;
  for (int named = 0; dirent* entry = readdir(directory);) {
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++named > kNamedMax) return names + " and more";
    for (char& c : name) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    names += (named == 1 ? "\"" : ", \"") + name + "\"";
  }
  return names;
}

Status CheckIsEmptyDirectory(const std::string& path) {
  struct stat attributes;
  if (stat(path.c_str(), &attributes) != 0) return ErrnoError(errno, "mount point " + path);
  if (!S_ISDIR(attributes.st_mode)) {
    return MakeError(ErrorCode::kNotDirectory, "mount point " + path + " is not a directory; give an empty directory");
  }
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return ErrnoError(errno, "mount point " + path);
  const std::string found = SomeOf(directory);
  closedir(directory);
  if (found.empty()) return {};
  return MakeError(ErrorCode::kNotEmpty, "mount point " + path + " is not empty (it holds " + found +
                                             ", which the mount would hide); give an empty directory");
}

Error ExplainFlags(int error, const std::string& path) {
  if (error == ENOTTY || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
    return MakeError(ErrorCode::kNotSupported, "the file system of " + path + " has no flag that forbids changes");
  }
  if (error == EPERM || error == EACCES) {
    return MakeError(ErrorCode::kPermission, "only root may forbid or allow changes of " + path);
  }
  return ErrnoError(error, "flags of " + path);
}

// Whether it was so already.
enum class Changes { kForbidden, kAllowed };
Result<bool> SetChanges(const std::string& path, Changes changes) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return ErrnoError(errno, path);
  unsigned flags = 0;
  bool is_done = ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0;
  const unsigned wanted = changes == Changes::kForbidden ? flags | FS_IMMUTABLE_FL : flags & ~unsigned{FS_IMMUTABLE_FL};
  const bool was_so = is_done && wanted == flags;
  if (is_done && !was_so) is_done = ioctl(fd, FS_IOC_SETFLAGS, &wanted) == 0;
  const int error = errno;
  close(fd);
  return is_done ? Result<bool>(was_so) : ExplainFlags(error, path);
}

// Whether the file of /proc/PID/fdinfo says so.
bool IsForWriting(const std::filesystem::path& fdinfo) {
  std::ifstream file(fdinfo);
  for (std::string name; file >> name;) {
    unsigned flags = 0;
    if (name == "flags:") return (file >> std::oct >> flags) && (flags & O_ACCMODE) != O_RDONLY;
  }
  return false;
}

}  // namespace

std::string ProcessesUsing(const std::string& mount_point, UseOfMount use) {
  namespace stdfs = std::filesystem;
  std::string list;
  int named = 0;
  std::error_code error;
  auto is_below = [&](const stdfs::path& link) {
    std::error_code ignored;
    std::string target = stdfs::read_symlink(link, ignored).string();
    return target == mount_point || target.starts_with(mount_point + "/");
  };
  for (stdfs::directory_iterator processes("/proc", error), end; !error && processes != end;
       processes.increment(error)) {
    const stdfs::path process = processes->path();
    const std::string pid = process.filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(getpid())) continue;
    bool uses = use == UseOfMount::kAny && (is_below(process / "cwd") || is_below(process / "root"));
    std::error_code fd_error;
    for (stdfs::directory_iterator files(process / "fd", fd_error); !uses && !fd_error && files != end;
         files.increment(fd_error)) {
      uses = is_below(files->path()) &&
             (use == UseOfMount::kAny || IsForWriting(process / "fdinfo" / files->path().filename()));
    }
    if (!uses) continue;
    if (++named > kNamedProcessesMax) return list + ", ...";
    std::string name;
    std::getline(std::ifstream(process / "comm") >> std::ws, name);
    list += (list.empty() ? "" : ", ") + pid + " (" + name + ")";
  }
  return list;
}

namespace {

Error BusyError(const std::string& mount_point) {
  std::string who = ProcessesUsing(mount_point, UseOfMount::kAny);
  return MakeError(ErrorCode::kBusy, mount_point + " is busy" + (who.empty() ? "" : ": used by process " + who) +
                                         "; end what uses it, or unmount lazily");
}

Status TryUnmount(const std::string& canonical, Unmounting how) {
  if (umount2(canonical.c_str(), UMOUNT_NOFOLLOW | (how == Unmounting::kLazily ? MNT_DETACH : 0)) == 0) return {};
  if (errno == EPERM) return FusermountUnmount(canonical, how);
  return ErrnoError(errno, "unmount " + canonical);
}

bool IsBusy(const Status& status) { return !status.ok() && status.error().code == ErrorCode::kBusy; }

Status RemoveDeadMounts(const std::string& canonical) {
  for (int i = 0; i < kStackedMountsMax && IsDead(canonical); ++i) {
    CAIRNFS_ASSIGN_OR_RETURN(auto mounts, ReadMountInfo());
    auto entry = TopmostAt(mounts, canonical);
    if (!entry || entry->type != kMountType) {
      return MakeError(ErrorCode::kBusy, "mount point " + canonical + " holds a dead mount of type " +
                                             (entry ? entry->type : "unknown") + ", which is not ours; unmount it");
    }
    spdlog::warn("{} was left mounted by a daemon that died; unmounting it lazily", canonical);
    CAIRNFS_RETURN_IF_ERROR(UnmountAt(canonical, Unmounting::kLazily));
  }
  return {};
}

}  // namespace

Result<std::string> CanonicalMountPoint(const std::string& path) {
  if (path.empty()) return MakeError(ErrorCode::kInvalidArgument, "the mount point is empty; give a directory");
  int error_number = 0;
  auto direct = RealPath(path, &error_number);
  if (direct.ok() || error_number != ENOTCONN) return direct;
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  size_t slash = trimmed.rfind('/');
  std::string parent = slash == std::string::npos ? "." : trimmed.substr(0, std::max<size_t>(slash, 1));
  CAIRNFS_ASSIGN_OR_RETURN(std::string real_parent, RealPath(parent));
  if (real_parent == "/") real_parent.clear();
  return real_parent + "/" + trimmed.substr(slash == std::string::npos ? 0 : slash + 1);
}

Result<std::string> PrepareMountPoint(const std::string& path) {
  auto canonical = CanonicalMountPoint(path);
  if (!canonical.ok()) {
    if (canonical.error().code == ErrorCode::kNotFound) {
      return MakeError(ErrorCode::kNotFound,
                       "mount point " + path + " does not exist; create it with: mkdir -p " + path);
    }
    return canonical.error().WithContext("mount point");
  }
  CAIRNFS_RETURN_IF_ERROR(RemoveDeadMounts(*canonical));
  CAIRNFS_ASSIGN_OR_RETURN(auto mounts, ReadMountInfo());
  if (auto entry = TopmostAt(mounts, *canonical); entry && entry->type == kMountType) {
    return MakeError(ErrorCode::kBusy, "mount point " + *canonical + " is already a cairnfs mount (" + entry->source +
                                           "); unmount it with: cairnfs umount " + *canonical);
  }
  CAIRNFS_RETURN_IF_ERROR(CheckIsEmptyDirectory(*canonical));
  return *canonical;
}

// What comes into it before the flag is there is found by the look after it.
Status GuardMountPoint(const std::string& canonical) {
  CAIRNFS_ASSIGN_OR_RETURN(const bool was_guarded, SetChanges(canonical, Changes::kForbidden));
  if (was_guarded) return {};
  Status empty = CheckIsEmptyDirectory(canonical);
  if (!empty.ok()) CAIRNFS_RETURN_IF_ERROR(SetChanges(canonical, Changes::kAllowed));
  if (empty.ok()) spdlog::info("{} is guarded: nobody can write into it while nothing is mounted there", canonical);
  return empty;
}

Status Unguard(const std::string& mount_point) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string canonical, CanonicalMountPoint(mount_point));
  CAIRNFS_ASSIGN_OR_RETURN(const auto mounts, ReadMountInfo());
  if (TopmostAt(mounts, canonical)) {
    return MakeError(ErrorCode::kBusy, "something is mounted at " + canonical + "; unmount it first");
  }
  const auto allowed = SetChanges(canonical, Changes::kAllowed);
  const bool is_allowed = allowed.ok() || allowed.error().code == ErrorCode::kNotSupported;
  return is_allowed ? Status() : Status(allowed.error());
}

Status UnmountAt(const std::string& canonical, Unmounting how, int tries) {
  Status status = TryUnmount(canonical, how);
  while (IsBusy(status) && --tries > 0) {
    Clock::SleepFor(kBetweenTries);
    status = TryUnmount(canonical, how);
  }
  return IsBusy(status) ? Status(BusyError(canonical)) : status;
}

std::vector<std::string> MountPointsOf(const std::string& source) {
  std::vector<std::string> mount_points;
  auto mounts = ReadMountInfo();
  if (!mounts.ok()) return mount_points;
  for (const MountEntry& entry : *mounts) {
    if (entry.type == kMountType && entry.source == source) mount_points.push_back(entry.mount_point);
  }
  return mount_points;
}

Status Unmount(const std::string& mount_point, Unmounting how) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string canonical, CanonicalMountPoint(mount_point));
  CAIRNFS_ASSIGN_OR_RETURN(auto mounts, ReadMountInfo());
  auto entry = TopmostAt(mounts, canonical);
  if (!entry) return MakeError(ErrorCode::kNotFound, canonical + " is not a mount point");
  if (entry->type != kMountType) {
    return MakeError(ErrorCode::kNotFound, canonical + " is a mount of type " + entry->type + ", not of cairnfs");
  }
  return UnmountAt(canonical, how, kTriesWhileBusy);
}

}  // namespace cairnfs::fuse
