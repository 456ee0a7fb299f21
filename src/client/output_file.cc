#include "client/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/failpoint.h"
#include "client/errors.h"
#include "client/replaced_mode.h"
#include "client/temporary_files.h"

namespace cairnfs::client {
namespace {

Failpoint before_sync("client.before_sync", Failpoint::Kind::kSkippable);
Failpoint before_rename("client.before_rename", Failpoint::Kind::kKill);
Failpoint after_rename("client.after_rename", Failpoint::Kind::kKill);

}  // namespace

Result<std::unique_ptr<OutputFile>> OutputFile::Create(const Options& options) {
  std::unique_ptr<OutputFile> file(new OutputFile(options.path));
  CAIRNFS_RETURN_IF_ERROR(file->Open(options));
  return file;
}

Status OutputFile::Open(const Options& options) {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path_.substr(0, slash);
  name_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  directory_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0) return FileError(errno, path_ + ": its directory " + folder);
  CAIRNFS_RETURN_IF_ERROR(CheckName());
  const std::string prefix = TemporaryPrefix(directory_, name_);
  RemoveAbandoned(directory_, prefix);  // first: this file may need their space
  CAIRNFS_RETURN_IF_ERROR(Make(prefix, options.mode));
  if (ftruncate(descriptor_, static_cast<off_t>(options.bytes)) != 0) {
    return FileError(errno, path_ + ".tmp-...: cannot have " + std::to_string(options.bytes) + " bytes");
  }
  CAIRNFS_ASSIGN_OR_RETURN(created_, IdentityOf(look_, path_));
  return {};
}

// Under a name of its own, which nobody else may take for one that was left behind.
Status OutputFile::Make(const std::string& prefix, uint32_t mode) {
  struct stat found {};
  const bool replaces = mode == 0 && fstatat(directory_, name_.c_str(), &found, 0) == 0 && S_ISREG(found.st_mode);
  // Whoever may read the file may lock it too.
  for (int tries = 0;; tries++) {
    if (tries == 100) return MakeError(ErrorCode::kIo, path_ + ".tmp-...: somebody locks each file of that name");
    std::string name = TemporaryName(prefix);
    const mode_t first_mode = replaces ? 0600 : mode == 0 ? 0666 : mode;
    descriptor_ = openat(directory_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, first_mode);
    if (descriptor_ < 0) return FileError(errno, path_ + ".tmp-...: cannot be made");
    temporary_name_ = std::move(name);
    look_ = openat(directory_, temporary_name_.c_str(), O_RDONLY | O_CLOEXEC);
    // The mode may not let even its owner read it.
    if (look_ < 0) look_ = dup(descriptor_);
    if (look_ < 0) return FileError(errno, path_ + ".tmp-...: cannot be opened");
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_locked, LockTemporary(look_));
    if (is_locked) break;
    unlinkat(directory_, temporary_name_.c_str(), 0);
    close(look_);
    close(descriptor_);
    look_ = descriptor_ = -1;
  }
  if (replaces) TakeModeOf(path_, descriptor_);
  return {};
}

// Before anything is written. A rename would put the file in the place of a pipe, or of /dev/null.
Status OutputFile::CheckName() const {
  struct stat found {};
  if (fstatat(directory_, name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENAMETOOLONG) return FileError(errno, path_);
    return {};  // the rename says what is wrong
  }
  if (S_ISDIR(found.st_mode)) return FileError(EISDIR, path_);
  if (S_ISREG(found.st_mode) || S_ISLNK(found.st_mode)) return {};
  return MakeError(ErrorCode::kIo, path_ + " is no regular file: a save replaces only files and links");
}

OutputFile::~OutputFile() {
  if (!temporary_name_.empty()) unlinkat(directory_, temporary_name_.c_str(), 0);
  for (const int descriptor : {descriptor_, look_, directory_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

Status OutputFile::Write(const std::byte* data, uint64_t bytes, uint64_t offset) {
  constexpr uint64_t kBytesAtOnce = kGiB;
  while (bytes > 0) {
    const ssize_t written = pwrite(descriptor_, data, std::min(bytes, kBytesAtOnce), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FileError(written < 0 ? errno : EIO, path_ + ": cannot be written");
    // The disk works while the rest is hashed and written. What it cannot do yet, the sync does.
    (void)sync_file_range(descriptor_, static_cast<off_t>(offset), written, SYNC_FILE_RANGE_WRITE);
    data += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<uint64_t>(written);
  }
  return {};
}

Status OutputFile::Publish() {
  if (!before_sync.PassOrSkip() && fsync(descriptor_) != 0) return FileError(errno, path_ + ": cannot be made durable");
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 && errno != EINTR) return FileError(errno, path_ + ": cannot be made durable");
  CAIRNFS_ASSIGN_OR_RETURN(written_, IdentityOf(look_, path_));
  is_settled_ = WaitPastMtime();
  before_rename.Pass();
  if (renameat(directory_, temporary_name_.c_str(), directory_, name_.c_str()) != 0) {
    return FileError(errno, path_ + ": cannot be put in its place");
  }
  temporary_name_.clear();
  if (Result<FileIdentity> renamed = IdentityOf(look_, path_); renamed.ok()) renamed_ = *renamed;
  renamed_at_ = Clock::Now();
  after_rename.Pass();
  if (fsync(directory_) != 0) return FileError(errno, path_ + ": is there, but its name cannot be made durable");
  return {};
}

// The clock of the file system may be another host's, so it is asked, by touches of the file that set ctime alone.
bool OutputFile::WaitPastMtime() {
  // A file system with ticks of a second or more.
  if (written_.mtime.nanoseconds == 0 && written_.ctime.nanoseconds == 0) return false;
  const Clock::duration wait = 2 * FileClockTick();
  for (int touches = 0; touches < 8; touches++) {
    struct stat found {};
    if (fstat(look_, &found) != 0 || fchmod(look_, found.st_mode & 07777) != 0) return false;
    const Result<FileIdentity> now = IdentityOf(look_, path_);
    if (!now.ok()) return false;
    const Clock::duration passed = TimeBetween(written_.mtime, now->ctime);
    // The sync of a large file takes longer than this waits.
    if (passed > (touches == 0 ? wait : Clock::duration::zero())) return true;
    Clock::SleepFor(wait);
  }
  return false;
}

std::optional<FileIdentity> OutputFile::Look() {
  if (!is_settled_) return std::nullopt;
  // A touch would set ctime anew; but ctime is not later than the end of the rename, by whatever clock.
  Clock::SleepUntil(renamed_at_ + 2 * std::max(FileClockTick(), kLongestTick));
  const Result<FileIdentity> now = IdentityOf(look_, path_);
  if (!now.ok() || *now != renamed_) return std::nullopt;
  FileIdentity expected = *now;
  expected.ctime = written_.ctime;  // the touch and the rename set it
  return expected == written_ ? now.value() : std::optional<FileIdentity>();
}

}  // namespace cairnfs::client
