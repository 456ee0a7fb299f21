#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdlib>

#include "base/log.h"
#include "io/posix_file.h"

namespace cairnfs::io {
namespace {

Status CheckName(const std::string& name) {
  bool fits = !name.empty() && name != "." && name != ".." && name.size() <= kNameBytesMax &&
              name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  if (!fits) return MakeError(ErrorCode::kInvalidArgument, "'" + name + "' is no name for a file of a disk");
  return {};
}

class PosixDisk final : public Disk {
 public:
  PosixDisk(int directory_fd, std::string path, bool direct, std::unique_ptr<IoEngine> engine)
      : directory_fd_(directory_fd), path_(std::move(path)), engine_(std::move(engine)), direct_(direct) {}
  ~PosixDisk() override {
    assert(open_files_.load(std::memory_order_acquire) == 0 && "a file is open");
    close(directory_fd_);
  }

  Result<std::unique_ptr<File>> Create(const std::string& name) override {
    return OpenFile(name, O_CREAT | O_EXCL, "creating ");
  }
  Result<std::unique_ptr<File>> Open(const std::string& name) override { return OpenFile(name, 0, "opening "); }
  Status Remove(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<std::vector<std::string>> List() override;
  Status SyncDirectory() override;
  Result<Space> GetSpace() override;

  // Turns direct I/O on for the open file if this disk can; false, and a warning the first time, where the file system
  // below refuses.
  bool TryDirect(int fd);
  void ProbeDirect();

 private:
  Result<std::unique_ptr<File>> OpenFile(const std::string& name, int flags, const char* what);
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  void GiveUpDirect();

  const int directory_fd_;
  const std::string path_;
  const std::unique_ptr<IoEngine> engine_;
  std::atomic<bool> direct_;
  std::atomic<uint64_t> open_files_{0};
};

void PosixDisk::GiveUpDirect() {
  if (direct_.exchange(false)) {
    spdlog::warn("the file system at {} refuses direct I/O (O_DIRECT); going through the page cache, which is slower",
                 path_);
  }
}

// Set after the open: an open with O_CREAT and O_DIRECT that is refused leaves the created file behind.
bool PosixDisk::TryDirect(int fd) {
  if (!direct_.load(std::memory_order_relaxed)) return false;
  int flags = fcntl(fd, F_GETFL);
  if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0) return true;
  GiveUpDirect();
  return false;
}

// Some file systems accept the flag and refuse the transfers, so one page is written to a file without a name.
void PosixDisk::ProbeDirect() {
  int fd = openat(directory_fd_, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return;  // no such files here: the first real file will tell
  if (TryDirect(fd)) {
    void* page = std::aligned_alloc(kPageBytes, kPageBytes);
    if (page != nullptr) {
      std::fill_n(static_cast<char*>(page), kPageBytes, '\0');
      if (pwrite(fd, page, kPageBytes, 0) < 0 && errno == EINVAL) GiveUpDirect();
    }
    std::free(page);
  }
  close(fd);
}

Result<std::unique_ptr<File>> PosixDisk::OpenFile(const std::string& name, int flags, const char* what) {
  CAIRNFS_RETURN_IF_ERROR(CheckName(name));
  int fd = openat(directory_fd_, name.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0 && errno == EROFS && flags == 0) {
    // A file system that was made read-only after an error. Its files stay readable, and perhaps somebody is copying
    // them away.
    fd = openat(directory_fd_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  }
  if (fd < 0) return OpenError(errno, what + PathOf(name));
  bool direct = TryDirect(fd);
  return std::unique_ptr<File>(new PosixFile(fd, PathOf(name), direct, {*engine_, open_files_}));
}

Status PosixDisk::Remove(const std::string& name) {
  CAIRNFS_RETURN_IF_ERROR(CheckName(name));
  if (unlinkat(directory_fd_, name.c_str(), 0) != 0) return ErrnoError(errno, "removing " + PathOf(name));
  return {};
}

Status PosixDisk::Rename(const std::string& from, const std::string& to) {
  CAIRNFS_RETURN_IF_ERROR(CheckName(from));
  CAIRNFS_RETURN_IF_ERROR(CheckName(to));
  if (renameat(directory_fd_, from.c_str(), directory_fd_, to.c_str()) != 0) {
    return ErrnoError(errno, "renaming " + PathOf(from) + " to " + to);
  }
  return {};
}

Result<std::vector<std::string>> PosixDisk::List() {
  // A descriptor of its own, so that lists in several threads do not share a position.
  int fd = openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* directory = fd < 0 ? nullptr : fdopendir(fd);
  if (directory == nullptr) {
    Error error = ErrnoError(errno, "listing " + path_);
    if (fd >= 0) close(fd);
    return error;
  }
  std::vector<std::string> names;
  errno = 0;
  while (dirent* entry = readdir(directory)) {
    struct stat attributes;
    bool is_directory = entry->d_type == DT_DIR;
    if (entry->d_type == DT_UNKNOWN) {
      is_directory = fstatat(fd, entry->d_name, &attributes, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(attributes.st_mode);
    }
    if (!is_directory) names.emplace_back(entry->d_name);
    errno = 0;
  }
  int error = errno;
  closedir(directory);
  if (error != 0) return ErrnoError(error, "listing " + path_);
  std::sort(names.begin(), names.end());
  return names;
}

Status PosixDisk::SyncDirectory() {
  while (fsync(directory_fd_) != 0) {
    if (errno != EINTR) return ErrnoError(errno, "syncing the directory " + path_);
  }
  return {};
}

Result<Disk::Space> PosixDisk::GetSpace() {
  struct statvfs space;
  if (fstatvfs(directory_fd_, &space) != 0) return ErrnoError(errno, "space of " + path_);
  // A file system in memory that was given no size says 0; it ends with the memory.
  constexpr uint64_t kUnlimited = uint64_t{1} << 50;
  if (space.f_blocks == 0) return Space{.total_bytes = kUnlimited, .free_bytes = kUnlimited};
  return Space{.total_bytes = uint64_t{space.f_blocks} * space.f_frsize,
               .free_bytes = uint64_t{space.f_bavail} * space.f_frsize};
}

std::unique_ptr<IoEngine> MakeEngine(const DiskOptions& options) {
  if (options.use_io_uring) {
    auto engine = MakeUringEngine(options.queue_depth);
    if (engine.ok()) return std::move(*engine);
    spdlog::warn("io_uring cannot be used for {} ({}); using threads, which is slower", options.path,
                 engine.error().message);
  }
  return MakeThreadEngine();
}

}  // namespace

Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options) {
  if (options.queue_depth == 0) return MakeError(ErrorCode::kInvalidArgument, "queue_depth must be at least 1");
  int fd = open(options.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == ENOTDIR) {
    return MakeError(ErrorCode::kNotDirectory, "opening the disk " + options.path + ": it is not a directory");
  }
  if (fd < 0) return ErrnoError(errno, "opening the disk " + options.path);
  if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
    Error error = ErrnoError(errno, "opening the disk " + options.path + " to write in it");
    close(fd);
    return error;
  }
  auto disk = std::make_unique<PosixDisk>(fd, options.path, options.direct, MakeEngine(options));
  if (options.direct) disk->ProbeDirect();
  return std::unique_ptr<Disk>(std::move(disk));
}

}  // namespace cairnfs::io
