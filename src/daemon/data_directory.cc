#include "daemon/data_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/failpoint.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "base/user.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

Failpoint fail_making_begun("daemon.making_begun", Failpoint::Kind::kKill);
Failpoint fail_before_format("daemon.before_format", Failpoint::Kind::kKill);
Failpoint fail_after_format("daemon.after_format", Failpoint::Kind::kKill);

constexpr size_t kUuidBytes = 16;
constexpr const char* kOwnerProbe = "owner.probe";
constexpr const char* kNewFormat = "format.new";
constexpr auto kOwnNames = std::to_array<std::string_view>(
    {"LOCK", "format", "format.making", kNewFormat, "segments", "metadata", "shared", "shared.loading", "tls",
     "control.sock", "ranks.sock", "cairnfs.log", "cairnfs.1.log", "cairnfs.2.log", "lost+found", kOwnerProbe});
Result<std::string> ReadSmallFile(int directory, const char* name, const std::string& path) {
  int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return ErrnoError(errno, fmt::format("cannot read {}/{}", path, name));
  std::optional<std::string> text = ReadText(fd);
  const int error = errno;
  close(fd);
  if (!text) return ErrnoError(error, fmt::format("cannot read {}/{}", path, name));
  return *std::move(text);
}

Status WriteSmallFile(int directory, const char* name, const std::string& text, const std::string& path) {
  int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoError(errno, fmt::format("cannot create {}/{}", path, name));
  bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  bool synced = written && fsync(fd) == 0 && fsync(directory) == 0;
  int error = errno;
  close(fd);
  if (!synced) return ErrnoError(error, fmt::format("cannot write {}/{}", path, name));
  return {};
}

// The value of "name = value" in one of the text's lines; empty where no line has it.
std::string_view Field(std::string_view text, std::string_view name, int* count = nullptr) {
  std::string_view value;
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    if (!line.starts_with(name) || !line.substr(name.size()).starts_with(" = ")) continue;
    value = line.substr(name.size() + 3);
    if (count != nullptr) ++*count;
  }
  return value;
}

bool IsUuid(std::string_view hex) {
  return hex.size() == 2 * kUuidBytes && hex.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Opens the directory, making its last component when it is absent and that is asked for.
Result<int> OpenDirectory(const std::string& path, bool create) {
  if (create && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    int error = errno;
    std::string parent = stdfs::path(path).parent_path().string();
    if (error == ENOENT) {
      return MakeError(ErrorCode::kNotFound,
                       fmt::format("cannot make the data directory {}: {} does not exist; make it "
                                   "first, or give another data directory",
                                   path, parent));
    }
    return ErrnoError(error, fmt::format("cannot make the data directory {}", path));
  }
  int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) return directory;
  if (errno == ENOTDIR) {
    return MakeError(ErrorCode::kNotDirectory,
                     fmt::format("the data directory {} is not a directory; give one that is", path));
  }
  if (errno == ENOENT) {
    return MakeError(ErrorCode::kNotFound, fmt::format("the data directory {} does not exist", path));
  }
  return ErrnoError(errno, fmt::format("cannot open the data directory {}", path));
}

// So that the directory's own name survives a crash.
Status SyncParent(int directory, const std::string& path) {
  const int parent = openat(directory, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) {
    if (errno == EACCES) return {};  // whoever may not read it cannot sync it either
    return ErrnoError(errno, fmt::format("cannot open the directory above {}", path));
  }
  const int error = fsync(parent) == 0 || errno == EINVAL ? 0 : errno;
  close(parent);
  if (error != 0) return ErrnoError(error, fmt::format("cannot sync the directory above {}", path));
  return {};
}

// Refuses a link, because bytes that are written into it would go elsewhere. `name` may be absent.
Status CheckOwnFile(int directory, const char* name, const std::string& path) {
  struct stat info;
  if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return {};  // whoever opens it says why
  if (S_ISREG(info.st_mode) && info.st_nlink == 1) return {};
  const char* what = S_ISLNK(info.st_mode)   ? "a symbolic link"
                     : S_ISREG(info.st_mode) ? "a file with other names (hard links)"
                                             : "no regular file";
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("{}/{} is {}, and what CairnFS writes there could go elsewhere: remove it, or put a file "
                  "of its own in its place",
                  path, name, what));
}

}  // namespace

Result<std::unique_ptr<DataDirectory>> DataDirectory::Open(const OpenOptions& options) {
  std::error_code ignored;
  std::string path = stdfs::absolute(options.path, ignored).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  CAIRNFS_ASSIGN_OR_RETURN(int directory, OpenDirectory(path, options.create));
  if (auto canonical = stdfs::canonical(path, ignored); !ignored) path = canonical.string();
  auto opened = std::unique_ptr<DataDirectory>(new DataDirectory(path, directory));
  CAIRNFS_RETURN_IF_ERROR(opened->CheckDirectory());

  // A check of some other directory must not leave a LOCK file behind there.
  const bool had_lock_file = faccessat(directory, "LOCK", F_OK, AT_SYMLINK_NOFOLLOW) == 0;
  const auto made = options.create ? DirectoryLock::File::kMayBeMade : DirectoryLock::File::kMustBeThere;
  CAIRNFS_ASSIGN_OR_RETURN(opened->lock_, DirectoryLock::Take(directory, path, made));
  if (auto recognised = opened->Recognise(options.create); !recognised.ok()) {
    if (!had_lock_file) unlinkat(directory, "LOCK", 0);  // leaves no trace in a directory that is not ours
    return recognised.error();
  }
  opened->lock_->NoteUse(options.purpose);
  return opened;
}

Result<std::string> DataDirectory::ReadUuid(const std::string& path) {
  const int directory = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return ErrnoError(errno, fmt::format("cannot open the data directory {}", path));
  const Result<std::string> text = ReadSmallFile(directory, "format", path);
  close(directory);
  if (!text.ok()) return text.error();
  const std::string_view uuid = Field(*text, "uuid");
  if (!IsUuid(uuid)) return MakeError(ErrorCode::kCorrupt, fmt::format("{}/format names no uuid", path));
  return std::string(uuid);
}

DataDirectory::~DataDirectory() {
  if (is_new_) Unmake();
  lock_.reset();
  close(directory_);
}

Status DataDirectory::Recognise(bool create) {
  std::vector<std::string> strangers;
  bool has_format = false, has_making = false, has_data = false;
  std::error_code error;
  for (stdfs::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    has_format |= name == "format";
    has_making |= name == "format.making";
    has_data |= name == "segments" || name == "metadata";
    if (std::find(kOwnNames.begin(), kOwnNames.end(), name) == kOwnNames.end()) strangers.push_back(name);
  }
  if (error) return ErrnoError(error.value(), fmt::format("cannot list the data directory {}", path_));
  std::sort(strangers.begin(), strangers.end());
  if (has_format) {
    if (!strangers.empty()) {
      notes_.push_back(fmt::format("{} holds '{}', which CairnFS did not put there", path_, strangers.front()));
    }
    CAIRNFS_RETURN_IF_ERROR(CheckOwner());
    return ReadFormat();
  }
  if (!strangers.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} is not a CairnFS data directory and holds '{}'; give an empty or absent directory",

                                 path_, strangers.front()));
  }
  if (has_data && !has_making) {
    return MakeError(ErrorCode::kCorrupt, fmt::format("{} holds CairnFS data but its file 'format' is missing; put it "
                                                      "back (\"version = 1\" and the line \"uuid = ...\" of a backup)",
                                                      path_));
  }
  if (!create) return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} holds no filesystem yet", path_));
  if (has_making) {
    notes_.push_back(fmt::format("{} is half-made: its first start did not come to its end; making it anew", path_));
  }
  return StartMaking();
}

Status DataDirectory::StartMaking() {
  uuid_ = ToHex(RandomBytes(kUuidBytes));
  CAIRNFS_RETURN_IF_ERROR(WriteSmallFile(directory_, "format.making", FormatText(), path_));
  fail_making_begun.Pass();
  for (const std::string& folder : {segments_path(), metadata_path(), shared_path(), loading_path(), path_ + "/tls"}) {
    std::error_code error;
    stdfs::remove_all(folder, error);
    if (!error && (folder == shared_path() || folder == loading_path())) continue;
    if (error) return ErrnoError(error.value(), fmt::format("cannot empty {}", folder));
    if (mkdir(folder.c_str(), 0700) != 0) return ErrnoError(errno, fmt::format("cannot make {}", folder));
  }
  if (fsync(directory_) != 0) return ErrnoError(errno, fmt::format("cannot sync {}", path_));
  CAIRNFS_RETURN_IF_ERROR(SyncParent(directory_, path_));
  is_new_ = true;
  lock_->ForgetPrevious();
  return {};
}

// Nobody can have stored anything in it. A crash here leaves the same as one while the directory is being made.
void DataDirectory::Unmake() {
  if (faccessat(directory_, "format.making", F_OK, AT_SYMLINK_NOFOLLOW) != 0) return;  // it was made, but not synced
  std::error_code ignored;
  for (const std::string& folder : {segments_path(), metadata_path(), shared_path(), loading_path(), path_ + "/tls"}) {
    stdfs::remove_all(folder, ignored);
  }
  unlinkat(directory_, "format.making", 0);
}

std::string DataDirectory::FormatText() const {
  // The line that must be there comes last, so that a file that was cut off is seen to be damaged.
  std::string joined = filesystem_.empty() ? "" : fmt::format("filesystem = {}\n", filesystem_);
  if (!growing_.empty()) joined += fmt::format("growing = {}\n", growing_);
  return fmt::format("version = {}\n{}uuid = {}\n", kFormatVersion, joined, uuid_);
}

Status DataDirectory::JoinFilesystem(const std::string& uuid_hex) {
  assert(filesystem_.empty());
  filesystem_ = uuid_hex;
  growing_.clear();
  return WriteFormat();
}

Status DataDirectory::NoteGrowing(const std::string& metadata) {
  assert(filesystem_.empty() && !is_new_);
  growing_ = metadata;
  return WriteFormat();
}

Status DataDirectory::TakeLoaded() const {
  if (rename(loading_path().c_str(), shared_path().c_str()) == 0 && fsync(directory_) == 0) return {};
  return ErrnoError(errno, fmt::format("cannot rename {} to {}", loading_path(), shared_path()));
}

Status DataDirectory::WriteFormat() const {
  const char* name = is_new_ ? "format.making" : "format";
  CAIRNFS_RETURN_IF_ERROR(WriteSmallFile(directory_, kNewFormat, FormatText(), path_));
  if (renameat(directory_, kNewFormat, directory_, name) != 0 || fsync(directory_) != 0) {
    return ErrnoError(errno, fmt::format("cannot write {}/{}", path_, name));
  }
  return {};
}

Status DataDirectory::FinishMaking() {
  assert(is_new_);
  fail_before_format.Pass();
  if (renameat(directory_, "format.making", directory_, "format") != 0 || fsync(directory_) != 0) {
    return ErrnoError(errno, fmt::format("cannot finish making the data directory {}", path_));
  }
  fail_after_format.Pass();
  is_new_ = false;
  return {};
}

Status DataDirectory::CheckDirectory() const {
  struct stat info;
  if (fstat(directory_, &info) != 0) return ErrnoError(errno, "cannot look at the data directory " + path_);
  if (info.st_uid != geteuid() && info.st_uid != 0 && KeepsOwners(info.st_uid)) {
    return MakeError(ErrorCode::kPermission,
                     fmt::format("the data directory {} belongs to {}: run this as that user, who could change what is "
                                 "stored in it. To hand it over, as root: chown -R {} {}",
                                 path_, UserName(info.st_uid), UserWord(geteuid()), path_));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return MakeError(ErrorCode::kPermission,
                     fmt::format("others than its owner may write into the data directory {} (mode {:04o}), and could "
                                 "change what is stored in it: run chmod go-w {}",
                                 path_, info.st_mode & 07777, path_));
  }
  for (const char* name :
       {"LOCK", "format", "format.making", kNewFormat, "cairnfs.log", "cairnfs.1.log", "cairnfs.2.log"}) {
    CAIRNFS_RETURN_IF_ERROR(CheckOwnFile(directory_, name, path_));
  }
  return {};
}

Status DataDirectory::CheckOwner() const {
  struct stat info;
  if (fstatat(directory_, "format", &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoError(errno, fmt::format("cannot look at {}/format", path_));
  }
  if (info.st_uid == geteuid() || !KeepsOwners(info.st_uid)) return {};
  return MakeError(ErrorCode::kPermission,
                   fmt::format("the filesystem in {} belongs to {}: run this as that user; {} would leave files in it "
                               "that its owner cannot read. To hand it over, as root: chown -R {} {}",
                               path_, UserName(info.st_uid), UserName(geteuid()), UserWord(geteuid()), path_));
}

// False where every file has the same owner, whoever makes it, as on 9p, CIFS and FAT.
bool DataDirectory::KeepsOwners(uid_t owner) const {
  unlinkat(directory_, kOwnerProbe, 0);
  int fd = openat(directory_, kOwnerProbe, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return true;
  struct stat info;
  bool keeps = fstat(fd, &info) != 0 || info.st_uid != owner;
  close(fd);
  unlinkat(directory_, kOwnerProbe, 0);
  return keeps;
}

Status DataDirectory::ReadFormat() {
  CAIRNFS_ASSIGN_OR_RETURN(std::string text, ReadSmallFile(directory_, "format", path_));
  for (const char* name : {"version", "uuid", "filesystem", "growing"}) {
    int count = 0;
    static_cast<void>(Field(text, name, &count));
    if (count > 1) {
      return MakeError(ErrorCode::kCorrupt, fmt::format("{}/format is damaged: it has {} lines \"{} = ...\"; put the "
                                                        "file back from a backup",
                                                        path_, count, name));
    }
  }
  std::string_view version_text = Field(text, "version");
  uint32_t version = 0;
  auto [end, code] = std::from_chars(version_text.data(), version_text.data() + version_text.size(), version);
  if (version_text.empty() || code != std::errc{} || end != version_text.data() + version_text.size() || version == 0) {
    return MakeError(ErrorCode::kCorrupt,
                     fmt::format("{}/format is damaged: its line \"version = NUMBER\" is missing or "
                                 "wrong; put the file back from a backup",
                                 path_));
  }
  if (version > kFormatVersion) {
    return MakeError(
        ErrorCode::kNotSupported,
        fmt::format("{} has format version {}, and this is cairnfs {}, which reads versions up to {}; use a "
                    "newer cairnfs",
                    path_, version, CAIRNFS_VERSION, kFormatVersion));
  }
  uuid_ = Field(text, "uuid");
  if (!IsUuid(uuid_)) {
    return MakeError(ErrorCode::kCorrupt,
                     fmt::format("{}/format is damaged: its line \"uuid = ...\" is missing or wrong; "
                                 "put the file back from a backup",
                                 path_));
  }
  filesystem_ = Field(text, "filesystem");
  if (!filesystem_.empty() && !IsUuid(filesystem_)) {
    return MakeError(ErrorCode::kCorrupt, fmt::format("{}/format is damaged: its line \"filesystem = ...\" is wrong; "
                                                      "put the file back from a backup",
                                                      path_));
  }
  growing_ = Field(text, "growing");
  for (const char* folder : {"segments", "metadata"}) {
    struct stat info;
    if (fstatat(directory_, folder, &info, 0) != 0 || !S_ISDIR(info.st_mode)) {
      return MakeError(ErrorCode::kCorrupt,
                       fmt::format("{}/{} is missing or no directory; put it back from a backup", path_, folder));
    }
  }
  return {};
}

uint64_t DataDirectory::DiskBytes() const {
  struct statvfs info;
  return fstatvfs(directory_, &info) == 0 ? static_cast<uint64_t>(info.f_blocks) * info.f_frsize : 0;
}

Result<std::string> ControlSocketPath(const std::string& data_path) {
  std::string path = data_path + "/control.sock";
  if (path.size() < sizeof(sockaddr_un::sun_path)) return path;
  int directory = open(data_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return ErrnoError(errno, fmt::format("cannot open the data directory {}", data_path));
  return fmt::format("/proc/self/fd/{}/control.sock", directory);
}

}  // namespace cairnfs::daemon
