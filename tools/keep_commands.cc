#include "keep_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "base/types.h"
#include "base/utc_text.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "keeping.h"
#include "locate.h"
#include "output.h"
#include "retention/values.h"

namespace cairnfs::tools {
namespace {

constexpr uint64_t kMillisecondsPerSecond = 1000;

// A checkpoint that is to be pinned or held: the directory itself, not what a symbolic link leads to.
class OpenedCheckpoint {
 public:
  static Result<OpenedCheckpoint> Open(const std::string& named) {
    OpenedCheckpoint opened(named);
    struct stat info = {};
    if (lstat(opened.path_.c_str(), &info) != 0) return ErrnoError(errno, "cannot find " + opened.path_);
    if (S_ISLNK(info.st_mode)) {
      return InvalidArgument(opened.path_ + " is a symbolic link; name the directory that it leads to");
    }
    if (!S_ISDIR(info.st_mode)) return InvalidArgument(opened.path_ + " is no directory, and a checkpoint is one");
    const auto mount = LocateMount(opened.path_);
    if (!mount.ok()) return mount.error();
    if (info.st_ino == kRootInode.value) {
      return InvalidArgument(opened.path_ + " is the root of a filesystem, and no checkpoint");
    }
    opened.file_ = open(opened.path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    if (opened.file_ < 0) return ErrnoError(errno, "cannot open " + opened.path_);
    return opened;
  }
  OpenedCheckpoint(OpenedCheckpoint&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  ~OpenedCheckpoint() {
    if (file_ >= 0) close(file_);
  }

  const std::string& path() const { return path_; }
  // Durable, and of what the path leads to, once it returns. A hold that ends later stays.
  Status Set(const char* name, const std::string& value) {
    // It is there already, and says more.
    const bool is_set = fsetxattr(file_, name, value.data(), value.size(), 0) == 0 || errno == EEXIST;
    if (!is_set && errno == EBUSY)
      return MakeError(ErrorCode::kNotFound, path_ + " was removed by retention, or is being removed");
    return is_set ? Finish() : Status(Failure());
  }
  Status Remove(const char* name) {
    if (fremovexattr(file_, name) != 0 && errno != ENODATA) return Status(Failure());
    return Finish();
  }

 private:
  explicit OpenedCheckpoint(const std::string& named) : path_(WithoutSlashes(Absolute(named))) {}
  Error Failure() const {
    Error error = ErrnoError(errno, path_);
    if (error.code == ErrorCode::kPermission) error.message += " (it is for its owner and root)";
    return error;
  }
  // Retention may have taken it away before it was held.
  Status Finish() {
    if (fsync(file_) != 0) return ErrnoError(errno, path_ + " cannot be made durable");
    struct stat opened = {}, named = {};
    const bool is_there = fstat(file_, &opened) == 0 && lstat(path_.c_str(), &named) == 0 &&
                          opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    if (is_there) return {};
    return MakeError(ErrorCode::kNotFound, path_ + " was removed or renamed meanwhile");
  }

  std::string path_;
  int file_ = -1;
};

int TellKeeping(const std::string& path, bool as_json) {
  const retention::Protection keeping = ReadProtection(path);
  nlohmann::ordered_json json;
  json["path"] = path;
  json.update(ProtectionJson(keeping));
  if (as_json) {
    Print(JsonText(json));
    return daemon::kExitDone;
  }
  std::string text = keeping.pinned ? "pinned" : "not pinned";
  if (keeping.held_until && *keeping.held_until > Clock::WallTime()) {
    text += ", held until " + UtcText(*keeping.held_until);
  }
  Print(fmt::format("{}: {}\n", Printable(path), text));
  return daemon::kExitDone;
}

int Change(const PinCommand& command, Status (*change)(OpenedCheckpoint&)) {
  auto checkpoint = OpenedCheckpoint::Open(command.path);
  if (!checkpoint.ok()) return Fail(checkpoint.error());
  if (const Status changed = change(*checkpoint); !changed.ok()) return Fail(changed.error());
  return TellKeeping(checkpoint->path(), command.json);
}

Status Hold(OpenedCheckpoint& checkpoint, uint64_t milliseconds) {
  Timestamp until = Clock::WallTime();
  until.seconds += static_cast<int64_t>(milliseconds / kMillisecondsPerSecond) + 1;
  return checkpoint.Set(CAIRNFS_XATTR_HELD_UNTIL, retention::HeldUntilText(until));
}

}  // namespace

Result<uint64_t> ParseHoldTime(const std::string& text) {
  constexpr uint64_t kDaysMax = 1'000'000, kMillisecondsMax = kDaysMax * 24 * 60 * 60 * kMillisecondsPerSecond;
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t milliseconds, daemon::ParseDurationMs(text));
  if (milliseconds >= kMillisecondsPerSecond && milliseconds <= kMillisecondsMax) return milliseconds;
  return InvalidArgument(
      fmt::format("a hold is for at least a second and at most {}d, as 2h, and not for {}", kDaysMax, text));
}

Status HoldFor(const std::string& path, uint64_t milliseconds) {
  CAIRNFS_ASSIGN_OR_RETURN(OpenedCheckpoint checkpoint, OpenedCheckpoint::Open(path));
  return Hold(checkpoint, milliseconds);
}

int RunPin(const PinCommand& command) {
  return Change(command, [](OpenedCheckpoint& checkpoint) { return checkpoint.Set(CAIRNFS_XATTR_PINNED, "1"); });
}

int RunUnpin(const PinCommand& command) {
  return Change(command, [](OpenedCheckpoint& checkpoint) { return checkpoint.Remove(CAIRNFS_XATTR_PINNED); });
}

int RunHold(const HoldCommand& command) {
  const PinCommand target{command.path, command.json};
  if (command.release) {
    return Change(target, [](OpenedCheckpoint& checkpoint) { return checkpoint.Remove(CAIRNFS_XATTR_HELD_UNTIL); });
  }
  const auto milliseconds = ParseHoldTime(command.time);
  if (!milliseconds.ok()) return Fail(milliseconds.error());
  auto checkpoint = OpenedCheckpoint::Open(command.path);
  if (!checkpoint.ok()) return Fail(checkpoint.error());
  if (const Status held = Hold(*checkpoint, *milliseconds); !held.ok()) return Fail(held.error());
  return TellKeeping(checkpoint->path(), command.json);
}

}  // namespace cairnfs::tools
