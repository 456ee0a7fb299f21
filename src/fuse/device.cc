#include "fuse/device.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/log.h"
#include "base/mount_info.h"
#include "fuse/fusermount.h"
#include "fuse/mount_point.h"
#include "fuse/negotiation.h"

namespace cairnfs::fuse {
namespace {

struct OptionWord {
  std::string_view word;
  unsigned long set;
  unsigned long clear;
};

constexpr std::array<OptionWord, 22> kOptionWords{{
    {"ro", MS_RDONLY, 0},
    {"rw", 0, MS_RDONLY},
    {"nosuid", MS_NOSUID, 0},
    {"suid", 0, MS_NOSUID},
    {"nodev", MS_NODEV, 0},
    {"dev", 0, MS_NODEV},
    {"noexec", MS_NOEXEC, 0},
    {"exec", 0, MS_NOEXEC},
    {"noatime", MS_NOATIME, MS_RELATIME | MS_STRICTATIME},
    {"atime", 0, MS_NOATIME},
    {"nodiratime", MS_NODIRATIME, 0},
    {"diratime", 0, MS_NODIRATIME},
    {"relatime", MS_RELATIME, MS_NOATIME | MS_STRICTATIME},
    {"norelatime", 0, MS_RELATIME},
    {"strictatime", MS_STRICTATIME, MS_NOATIME | MS_RELATIME},
    {"nostrictatime", 0, MS_STRICTATIME},
    {"sync", MS_SYNCHRONOUS, 0},
    {"async", 0, MS_SYNCHRONOUS},
    {"dirsync", MS_DIRSYNC, 0},
    {"nosymfollow", MS_NOSYMFOLLOW, 0},
    {"symfollow", 0, MS_NOSYMFOLLOW},
    {"default_permissions", 0, 0},
}};

constexpr std::array<std::string_view, 12> kFstabWords{"defaults", "auto",   "noauto", "nofail", "_netdev", "user",
                                                       "users",    "nouser", "owner",  "group",  "loud",    "silent"};

const OptionWord* FindWord(std::string_view word) {
  for (const OptionWord& option : kOptionWords) {
    if (option.word == word) return &option;
  }
  return nullptr;
}

Result<int> OpenFuseDevice() {
  int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd >= 0) return fd;
  if (errno == ENOENT || errno == ENODEV || errno == ENXIO) {
    return MakeError(ErrorCode::kUnavailable,
                     "there is no /dev/fuse; load the kernel module (modprobe fuse), or in a container pass the device "
                     "(--device /dev/fuse)");
  }
  return ErrnoError(errno, "open /dev/fuse");
}

// Commas and backslashes of a value are escaped in fusermount's option list.
std::string Escaped(const std::string& value) {
  std::string escaped;
  for (char c : value) {
    if (c == ',' || c == '\\') escaped.push_back('\\');
    escaped.push_back(c);
  }
  return escaped;
}

// Raises the machine's limit on the size of a FUSE request (kernel 6.13), which the kernel reads when it mounts. It is
// never lowered, and changes nothing for a filesystem that does not ask for more.
void RaiseRequestLimit() {
  constexpr const char* kLimit = "/proc/sys/fs/fuse/max_pages_limit";
  uint64_t pages = 0;
  if (std::ifstream file(kLimit); !(file >> pages)) return;
  constexpr uint64_t kWanted = kMaxReadBytes / kPageBytes;
  if (pages >= kWanted) return;
  std::ofstream file(kLimit);
  file << kWanted << std::flush;
  if (file) {
    spdlog::info("raised fs.fuse.max_pages_limit from {} to {}", pages, kWanted);
  } else {
    spdlog::info("could not raise fs.fuse.max_pages_limit from {} to {}: reads go in smaller requests", pages, kWanted);
  }
}

Result<int> MountAsRoot(const MountOptions& options, const std::string& mount_point, unsigned long flags) {
  CAIRNFS_ASSIGN_OR_RETURN(int fd, OpenFuseDevice());
  char data[160];
  std::snprintf(data, sizeof data, "fd=%d,rootmode=%o,user_id=%u,group_id=%u,default_permissions%s", fd, S_IFDIR,
                getuid(), getgid(), options.allow_other ? ",allow_other" : "");
  if (mount(options.source.c_str(), mount_point.c_str(), kMountType, flags, data) == 0) return fd;
  int error = errno;
  close(fd);
  if (error == EPERM || error == EACCES) {
    return MakeError(ErrorCode::kPermission, "mount(2) on " + mount_point +
                                                 " is not permitted; run as root with CAP_SYS_ADMIN, or as a user "
                                                 "with fusermount3 installed");
  }
  if (error == ENODEV) {
    return MakeError(ErrorCode::kUnavailable, "the kernel knows no FUSE; load the module with: modprobe fuse");
  }
  return ErrnoError(error, "mount " + mount_point);
}

Result<int> MountAsUser(const MountOptions& options, const std::string& mount_point) {
  std::vector<std::string> words{"default_permissions", "fsname=" + Escaped(options.source), "subtype=cairnfs"};
  if (options.read_only) words.emplace_back("ro");
  if (options.allow_other && UserMayAllowOther()) {
    words.emplace_back("allow_other");
  } else if (options.allow_other) {
    spdlog::warn("{}: only you will see what is mounted: /etc/fuse.conf does not hold user_allow_other", mount_point);
  }
  for (const std::string& word : options.kernel_options) {
    if (!IsFstabWord(word) && word != "default_permissions") words.push_back(word);
  }
  return FusermountMount(mount_point, words);
}

}  // namespace

bool IsMountFlag(std::string_view word) { return FindWord(word) != nullptr; }

bool IsFstabWord(std::string_view word) {
  if (word.empty() || word.starts_with("x-") || word.starts_with("X-") || word.starts_with("comment=")) return true;
  return std::find(kFstabWords.begin(), kFstabWords.end(), word) != kFstabWords.end();
}

Result<KernelMountFlags> ParseKernelOptions(const std::vector<std::string>& words, unsigned long flags) {
  KernelMountFlags result{flags};
  for (const std::string& word : words) {
    if (IsFstabWord(word)) continue;
    const OptionWord* option = FindWord(word);
    if (option == nullptr) {
      std::string known;
      for (const OptionWord& each : kOptionWords) known += (known.empty() ? "" : ", ") + std::string(each.word);
      return MakeError(ErrorCode::kInvalidArgument, "unknown mount option \"" + word + "\"; known are: " + known);
    }
    result.flags = (result.flags | option->set) & ~option->clear;
  }
  return result;
}

Device::Device(int fd, std::string mount_point) : fd_(fd), mount_point_(std::move(mount_point)) {
  auto mounts = ReadMountInfo();
  if (!mounts.ok()) return;
  if (auto entry = TopmostAt(*mounts, mount_point_)) device_number_ = entry->device;
}

Device::~Device() { close(fd_); }

Status Server::Check(const MountOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(KernelMountFlags parsed, ParseKernelOptions(options.kernel_options));
  static_cast<void>(parsed);
  CAIRNFS_ASSIGN_OR_RETURN(std::string mount_point, PrepareMountPoint(options.mount_point));
  static_cast<void>(mount_point);
  return {};
}

Result<std::unique_ptr<Device>> Device::Mount(const MountOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(KernelMountFlags parsed, ParseKernelOptions(options.kernel_options));
  CAIRNFS_ASSIGN_OR_RETURN(std::string mount_point, PrepareMountPoint(options.mount_point));
  if (options.guard) {
    const Status guarded = GuardMountPoint(mount_point);
    if (!guarded.ok() && guarded.error().code == ErrorCode::kNotEmpty) return guarded.error();
    if (!guarded.ok()) {
      spdlog::warn("{} is not guarded, and can be written into while nothing is mounted there: {}", mount_point,
                   guarded.error().message);
    }
  }
  if (options.read_only) parsed.flags |= MS_RDONLY;
  if (geteuid() == 0) RaiseRequestLimit();
  auto fd = geteuid() == 0 ? MountAsRoot(options, mount_point, parsed.flags) : MountAsUser(options, mount_point);
  if (!fd.ok()) return fd.error();
  return std::unique_ptr<Device>(new Device(*fd, std::move(mount_point)));
}

bool Device::Mounted() const {
  auto mounts = ReadMountInfo();
  if (!mounts.ok()) return false;
  for (const MountEntry& entry : *mounts) {
    if (entry.mount_point == mount_point_ && entry.device == device_number_) return true;
  }
  return false;
}

Status Device::Unmount(Unmounting how) {
  MutexLock lock(unmount_mutex_);
  if (!Mounted()) return {};
  return UnmountAt(mount_point_, how);
}

void Device::SetReadAhead(size_t bytes) const {
  if (device_number_.empty()) return;
  std::ofstream file("/sys/class/bdi/" + device_number_ + "/read_ahead_kb");
  file << bytes / kKiB << std::flush;
  if (!file) spdlog::info("{}: could not raise the kernel's read-ahead for mapped files", mount_point_);
}

}  // namespace cairnfs::fuse
