#include "daemon/directory_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>

#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/user.h"

namespace cairnfs::daemon {
namespace {

// How long to wait for a holder that is stopping; and for any other, which may yet have to notice an unmount.
constexpr auto kStoppingWaitMax = std::chrono::seconds(30);
constexpr auto kHolderWaitMax = std::chrono::seconds(1);

// LOCK as it was found: any bytes may stand there once the directory was damaged or restored. While it is being written
// more lines may follow, since Write cuts them off last.
struct LockLines {
  std::string user;  // of the directory, who may be gone: "PID state"; or how the last one ended
  std::string left;  // by whoever served last; the same, unless `user` only looks, or starts
};

constexpr std::string_view kLeftBefore = "before: ";

// The digits of the pid in LOCK; empty where it names none.
std::string PidOf(const std::string& lock_text) {
  const std::string pid = lock_text.substr(0, lock_text.find(' '));
  return pid.find_first_not_of("0123456789") == std::string::npos ? pid : "";
}

std::optional<LockLines> ReadLockLines(int fd) {
  const std::optional<std::string> text = ReadText(fd);
  if (!text) return std::nullopt;
  const size_t end = std::min(text->size(), text->find('\n'));
  LockLines lines{text->substr(0, end), text->substr(0, end)};
  const std::string second = text->substr(std::min(text->size(), end + 1));
  if (!PidOf(lines.user).empty() && second.starts_with(kLeftBefore)) {
    lines.left = second.substr(kLeftBefore.size(), second.find('\n') - kLeftBefore.size());
  }
  return lines;
}

Result<LockLines> ReadLockFile(const std::string& data_path) {
  const std::string path = data_path + "/LOCK";
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  std::optional<LockLines> lines = fd >= 0 ? ReadLockLines(fd) : std::nullopt;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (lines) return LockLines{PrintableAscii(lines->user), PrintableAscii(lines->left)};
  if (error == ENOENT || error == EACCES) return LockLines();
  return ErrnoError(error, "cannot read " + path);
}

std::string HolderOf(const std::string& lock_text) {
  const size_t space = lock_text.find(' ');
  const std::string pid = PidOf(lock_text);
  if (pid.empty()) return "another process";
  const std::string state = space == std::string::npos ? "running" : lock_text.substr(space + 1);
  return fmt::format("process {} ({})", pid, PrintableAscii(state));
}

// Threads of a killed process that wait for the disk hold the lock until the disk has answered.
bool HasBeenKilled(const std::string& lock_text) {
  const std::string pid = PidOf(lock_text);
  if (pid.empty()) return false;
  std::ifstream file("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(file, stat);               // nothing of one that is gone for good, or that this process may not see
  const size_t state = stat.rfind(") ");  // proc(5): the name before it may hold anything
  return state != std::string::npos && state + 2 < stat.size() && (stat[state + 2] == 'Z' || stat[state + 2] == 'X');
}

Status WaitForLock(int lock, const std::string& path) {
  auto began = Clock::Now();
  for (;;) {
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) return {};
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return ErrnoError(errno, fmt::format("cannot lock {}/LOCK", path));
    const std::string holder = ReadLockLines(lock).value_or(LockLines()).user;
    bool is_stopping = holder.empty() || holder.ends_with(" stopping") || HasBeenKilled(holder);
    auto waited = Clock::Now() - began;
    if (waited > (is_stopping ? kStoppingWaitMax : kHolderWaitMax)) {
      return MakeError(ErrorCode::kBusy, fmt::format("the data directory {} is in use by {}; stop that one first, or "
                                                     "give another data directory",
                                                     path, HolderOf(holder)));
    }
    Clock::SleepFor(std::chrono::milliseconds(50));
  }
}

Error LockOpenError(int error, const std::string& path) {
  if (error == EACCES || error == EPERM || error == EROFS) {
    struct stat info;
    bool has_owner = error != EROFS && stat(path.c_str(), &info) == 0 && info.st_uid != geteuid();
    return MakeError(ErrorCode::kPermission,
                     fmt::format("the data directory {} is not writable by user {}: {}{}", path, geteuid(),
                                 ErrnoError(error, "LOCK").message,
                                 has_owner ? "; the directory belongs to " + UserName(info.st_uid) : ""));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return MakeError(ErrorCode::kNoSpace,
                     fmt::format("no space left in the data directory {}; make room there first", path));
  }
  return ErrnoError(error, fmt::format("cannot open {}/LOCK", path));
}

}  // namespace

std::optional<std::string> ReadText(int fd) {
  std::string text(4096, '\0');
  ssize_t size = pread(fd, text.data(), text.size(), 0);
  if (size < 0) return std::nullopt;
  text.resize(static_cast<size_t>(size));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Result<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(int directory, const std::string& path, File file) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (file == File::kMayBeMade ? O_CREAT : 0);
  const int lock = openat(directory, "LOCK", flags, 0600);
  if (lock < 0 && errno == ENOENT) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} is not a CairnFS data directory", path));
  }
  if (lock < 0) return LockOpenError(errno, path);
  std::unique_ptr<DirectoryLock> taken(new DirectoryLock(lock, path));
  CAIRNFS_RETURN_IF_ERROR(WaitForLock(lock, path));
  taken->left_before_ = ReadLockLines(lock).value_or(LockLines()).left;
  taken->previous_ = PrintableAscii(taken->left_before_);
  return taken;
}

DirectoryLock::~DirectoryLock() {
  Restore();
  close(lock_);
}

void DirectoryLock::Write(const std::string& text) {
  // A failure here costs the text alone, never data, and the disk may be full: so it is no reason not to start. The old
  // text is overwritten, which needs no room. A full disk might not give back the block of a file that was emptied.
  if (pwrite(lock_, text.data(), text.size(), 0) < 0 || ftruncate(lock_, static_cast<off_t>(text.size())) != 0 ||
      fdatasync(lock_) != 0) {
    spdlog::warn("cannot write {}/LOCK", path_);
  }
}

void DirectoryLock::Restore() {
  if (restores_) Write(left_before_.empty() ? "" : left_before_ + "\n");
}

void DirectoryLock::WriteLast(const std::string& text) {
  restores_ = false;
  Write(text);
}

void DirectoryLock::SetState(const std::string& state) { WriteLast(fmt::format("{} {}\n", getpid(), state)); }
void DirectoryLock::MarkFailed(const std::string& why) {
  std::string line = "failed: " + why;
  std::replace(line.begin(), line.end(), '\n', ' ');
  WriteLast(line + "\n");
}
void DirectoryLock::MarkClean() { WriteLast(""); }

void DirectoryLock::NoteUse(const std::string& purpose) {
  Write(fmt::format("{} {}\n{}{}\n", getpid(), purpose, kLeftBefore, left_before_));
  restores_ = true;
}

Result<std::string> ReadLockText(const std::string& data_path) {
  CAIRNFS_ASSIGN_OR_RETURN(LockLines lines, ReadLockFile(data_path));
  return std::move(lines.user);
}

Result<std::string> ReadLastEnd(const std::string& data_path) {
  CAIRNFS_ASSIGN_OR_RETURN(LockLines lines, ReadLockFile(data_path));
  return std::move(lines.left);
}

bool IsInUse(const std::string& data_path) {
  int fd = open((data_path + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return true;
  // Held for a moment only, and Take tries again.
  bool is_free = flock(fd, LOCK_SH | LOCK_NB) == 0;
  close(fd);
  return !is_free;
}

}  // namespace cairnfs::daemon
