#include "io/backing_fs.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/thread_annotations.h"

namespace cairnfs::io {
namespace {

constexpr const char* kHugePagesOfTmpfs = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

Error FailureOf(int errno_value, const std::string& what) {
  Error error = ErrnoError(errno_value, "the memory for passthrough: " + what);
  if (errno_value == ENOMEM) error.code = ErrorCode::kNoSpace;
  if (errno_value == EMFILE || errno_value == ENFILE) error.code = ErrorCode::kExhausted;
  return error;
}

class TmpfsFile final : public BackingFile {
 public:
  // `directory`: of the tmpfs, outlives it. `fd`: of the file `name` in it.
  TmpfsFile(const Descriptor& directory, std::string name, Descriptor fd)
      : directory_(directory), name_(std::move(name)), fd_(std::move(fd)) {}
  ~TmpfsFile() override { unlinkat(directory_.get(), name_.c_str(), 0); }

  Status Write(uint64_t offset, ByteSpan data) override {
    MutexLock lock(mutex_);
    CAIRNFS_RETURN_IF_ERROR(OpenForWriting());
    while (!data.empty()) {
      const ssize_t written = pwrite(writing_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FailureOf(errno, "write");
      offset += static_cast<uint64_t>(written);
      data = data.subspan(static_cast<size_t>(written));
    }
    return {};
  }

  Status Truncate(uint64_t size) override {
    MutexLock lock(mutex_);
    CAIRNFS_RETURN_IF_ERROR(OpenForWriting());
    if (ftruncate(writing_.get(), static_cast<off_t>(size)) != 0) return FailureOf(errno, "truncate");
    return {};
  }

  Status Punch(uint64_t offset, uint64_t length) override {
    MutexLock lock(mutex_);
    CAIRNFS_RETURN_IF_ERROR(OpenForWriting());
    constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    while (fallocate(writing_.get(), kMode, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0) {
      if (errno != EINTR) return FailureOf(errno, "punch");
    }
    return {};
  }

  void EndWriting() override {
    MutexLock lock(mutex_);
    writing_ = Descriptor();
  }

  int fd() const override { return fd_.get(); }

  // The kernel gives a lease for writing to who has the only open file. A mapping keeps its file open. The descriptor
  // for writing is one more.
  Result<bool> IsUsed() override {
    MutexLock lock(mutex_);
    writing_ = Descriptor();
    // Should somebody open the file all the same, the holder of the lease gets a signal: one that is ignored.
    if (fcntl(fd_.get(), F_SETSIG, SIGURG) != 0) return FailureOf(errno, "signal of a lease");
    if (fcntl(fd_.get(), F_SETLEASE, F_WRLCK) == 0) {
      if (fcntl(fd_.get(), F_SETLEASE, F_UNLCK) != 0) return FailureOf(errno, "end of a lease");
      return false;
    }
    if (errno == EAGAIN) return true;
    return FailureOf(errno, "lease");
  }

 private:
  Status OpenForWriting() REQUIRES_LOCK(mutex_) {
    if (writing_) return {};
    Descriptor opened(openat(directory_.get(), name_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!opened) return FailureOf(errno, "open a file");
    writing_ = std::move(opened);
    return {};
  }

  const Descriptor& directory_;
  const std::string name_;
  const Descriptor fd_;
  Mutex mutex_;  // a leaf
  Descriptor writing_ GUARDED_BY(mutex_);
};

class Tmpfs final : public BackingFs {
 public:
  Tmpfs(Descriptor directory, Descriptor read_only)
      : directory_(std::move(directory)), read_only_(std::move(read_only)) {}

  Result<std::unique_ptr<BackingFile>> MakeFile() override {
    std::string name = std::to_string(made_.fetch_add(1));
    const Descriptor made(openat(directory_.get(), name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (!made) return FailureOf(errno, "make a file");
    Descriptor reading(openat(read_only_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!reading) {
      const int error = errno;
      unlinkat(directory_.get(), name.c_str(), 0);
      return FailureOf(error, "open a file for reading");
    }
    return std::unique_ptr<BackingFile>(new TmpfsFile(directory_, std::move(name), std::move(reading)));
  }

  Result<uint64_t> UsedBytes() const override {
    struct statfs space {};
    if (fstatfs(directory_.get(), &space) != 0) return FailureOf(errno, "statfs");
    return (space.f_blocks - space.f_bfree) * static_cast<uint64_t>(space.f_bsize);
  }

 private:
  const Descriptor directory_;  // of a mount that is nowhere
  const Descriptor read_only_;  // of another one of the same tmpfs, through which nobody can write
  std::atomic<uint64_t> made_{0};
};

Status CheckHugePages() {
  std::ifstream file(kHugePagesOfTmpfs);
  std::string words;
  std::getline(file, words);
  if (!file) {
    return MakeError(ErrorCode::kNotSupported, "this kernel has no huge pages for files in memory (there is no " +
                                                   std::string(kHugePagesOfTmpfs) + ")");
  }
  if (words.find("[deny]") == std::string::npos) return {};
  return MakeError(ErrorCode::kNotSupported,
                   std::string("huge pages for files in memory are denied; allow them with: ") + "echo never > " +
                       kHugePagesOfTmpfs);
}

// Elsewhere it could be had, and the kernel would take none of its files.
Status CheckFirstUserNamespace() {
  constexpr uint64_t kAllIds = UINT32_MAX;
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  if ((map >> inside >> outside >> count) && inside == 0 && outside == 0 && count == kAllIds) return {};
  return MakeError(ErrorCode::kPermission,
                   "the memory for passthrough: the daemon runs in a user namespace, and so lacks CAP_SYS_ADMIN in the "
                   "first one");
}

// Without leases nothing tells who maps a file.
Status CheckLeases(BackingFs& memory) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto file, memory.MakeFile());
  const auto used = file->IsUsed();
  if (used.ok()) return {};
  return MakeError(ErrorCode::kNotSupported,
                   used.error().message + " (are they turned off? allow them with: sysctl fs.leases-enable=1)");
}

Result<Descriptor> MountTmpfs(const BackingFs::Options& options) {
  const Descriptor context(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context && errno == EPERM)
    return MakeError(ErrorCode::kPermission, "the daemon is not root's: it lacks CAP_SYS_ADMIN");
  if (!context) return FailureOf(errno, "fsopen");
  const auto set = [&](const char* key, const std::string& value) {
    return fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0);
  };
  // Not "always": a small file would take a huge page.
  if (set("huge", "within_size") != 0) {
    Error error = FailureOf(errno, "huge pages");
    if (errno == EINVAL) error.code = ErrorCode::kNotSupported;
    return error;
  }
  if (fsconfig(context.get(), FSCONFIG_SET_FLAG, "noswap", nullptr, 0) != 0) return FailureOf(errno, "noswap");
  if (set("size", std::to_string(options.size_bytes_max)) != 0) return FailureOf(errno, "size");
  if (set("mode", "0700") != 0) return FailureOf(errno, "mode");
  if (fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return FailureOf(errno, "make a tmpfs");
  Descriptor mounted(fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  if (!mounted) return FailureOf(errno, "fsmount");
  return mounted;
}

Result<Descriptor> CloneReadOnly(const Descriptor& mounted) {
  Descriptor clone(open_tree(mounted.get(), "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!clone) return FailureOf(errno, "open_tree");
  struct mount_attr attributes {};
  attributes.attr_set = MOUNT_ATTR_RDONLY;
  if (mount_setattr(clone.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0) {
    return FailureOf(errno, "mount_setattr");
  }
  return clone;
}

}  // namespace

Result<std::unique_ptr<BackingFs>> BackingFs::Open(const Options& options) {
  CAIRNFS_RETURN_IF_ERROR(CheckFirstUserNamespace());
  CAIRNFS_RETURN_IF_ERROR(CheckHugePages());
  CAIRNFS_ASSIGN_OR_RETURN(Descriptor mounted, MountTmpfs(options));
  CAIRNFS_ASSIGN_OR_RETURN(Descriptor read_only, CloneReadOnly(mounted));
  std::unique_ptr<BackingFs> memory(new Tmpfs(std::move(mounted), std::move(read_only)));
  CAIRNFS_RETURN_IF_ERROR(CheckLeases(*memory));
  return memory;
}

}  // namespace cairnfs::io
