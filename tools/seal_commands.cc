#include "seal_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "base/types.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "json_text.h"
#include "keeping.h"
#include "locate.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::seconds kWritersCloseMax{5};
constexpr std::chrono::milliseconds kWritersPoll{100};
constexpr const char *kSealed = "1", *kAtCommit = "at-commit", *kCommits = "commits";

// The directory itself, not what a symbolic link leads to.
class DirectoryToSeal {
 public:
  static Result<DirectoryToSeal> Open(const std::string& named) {
    DirectoryToSeal opened(WithoutSlashes(Absolute(named)));
    const auto mount = LocateMount(opened.path_);
    if (!mount.ok()) return mount.error();
    struct stat info = {};
    if (lstat(opened.path_.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
      return InvalidArgument(opened.path_ + " is a symbolic link; name the directory that it leads to");
    }
    opened.file_ = open(opened.path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY | O_NOFOLLOW);
    if (opened.file_ < 0 && errno == ENOTDIR) return InvalidArgument(opened.path_ + " is no directory");
    if (opened.file_ < 0) return ErrnoError(errno, "cannot open " + opened.path_);
    if (fstat(opened.file_, &info) == 0 && info.st_ino == kRootInode.value) {
      return InvalidArgument(opened.path_ + " is the root of a filesystem, which cannot be sealed");
    }
    return opened;
  }
  DirectoryToSeal(DirectoryToSeal&& other) noexcept
      : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}
  ~DirectoryToSeal() {
    if (file_ >= 0) close(file_);
  }

  const std::string& path() const { return path_; }
  Status Set(const std::string& value) {
    // The call itself waits for a short time, as others cannot make names in the directory meanwhile.
    const auto until = Clock::Now() + kWritersCloseMax;
    while (fsetxattr(file_, CAIRNFS_XATTR_SEALED, value.data(), value.size(), 0) != 0) {
      const int failure = errno;
      if (failure != EBUSY) return Failure(failure);
      if (Clock::Now() >= until) return MakeError(ErrorCode::kBusy, path_ + " cannot be sealed: " + Writers());
      Clock::SleepFor(kWritersPoll);
    }
    return Sync();
  }
  Status Remove() {
    if (fremovexattr(file_, CAIRNFS_XATTR_SEALED) != 0 && errno != ENODATA) return Failure(errno);
    return Sync();
  }

 private:
  explicit DirectoryToSeal(std::string path) : path_(std::move(path)) {}
  // A sentence for each, on one line.
  std::string Writers() const {
    const auto writers = ReadAttribute(path_, CAIRNFS_XATTR_WRITERS);
    if (!writers.ok() || !*writers || (*writers)->empty())
      return "a file below it was open for writing, or its removal has begun; try again";
    std::string text = **writers;
    if (text.ends_with('\n')) text.pop_back();
    for (char& byte : text) byte = byte == '\n' ? ';' : byte;
    return Printable(text) + ": close it first";
  }
  Error Failure(int failure) const {
    Error error = ErrnoError(failure, path_);
    if (failure == EROFS) {
      error.message = path_ + (IsInReadOnlyMount(file_) ? " lies in a mount that is read-only"
                                                        : " lies below a sealed directory, or is sealed itself");
    }
    if (failure == ETIMEDOUT)
      error.message += ": a host does not say what it writes (`cairnfs status` names those that are away)";
    if (failure == EPERM || failure == EACCES) error.message += " (it is for its owner and root)";
    return error;
  }
  Status Sync() {
    if (fsync(file_) == 0) return {};
    return ErrnoError(errno, path_ + " cannot be made durable");
  }

  std::string path_;
  int file_ = -1;
};

int TellSeal(const std::string& path, const std::string& wanted, bool as_json) {
  const auto state = ReadAttribute(path, CAIRNFS_XATTR_SEALED);
  if (!state.ok()) return Fail(state.error());
  const std::string value = state->value_or("");
  if (!wanted.empty() && value != wanted) {
    return Fail(MakeError(ErrorCode::kBusy, path + " was sealed or unsealed by somebody else meanwhile"));
  }
  if (as_json) {
    nlohmann::ordered_json json;
    json["path"] = path;
    json["sealed"] = value == kSealed;
    json["seals_commits"] = value == kCommits;
    Print(JsonText(json));
    return daemon::kExitDone;
  }
  Print(fmt::format("{}: {}\n", Printable(path), SealSentence(value)));
  return daemon::kExitDone;
}

}  // namespace

std::string SealSentence(const std::string& value) {
  if (value == kSealed) return "sealed";
  if (value == kCommits) return "each directory that is renamed into it is sealed";
  if (value == kAtCommit) return "its next rename seals it";
  if (value == "below") return "below a sealed directory";
  if (value == "sealing") return "being sealed, or left so by a host that died: seal it again, or unseal it";
  return "not sealed";
}

int RunSeal(const SealCommand& command) {
  auto directory = DirectoryToSeal::Open(command.path);
  if (!directory.ok()) return Fail(directory.error());
  const char* wanted = command.commits ? kCommits : kSealed;
  const Status sealed = directory->Set(wanted);
  if (!sealed.ok()) return Fail(sealed.error());
  return TellSeal(directory->path(), wanted, command.json);
}

int RunUnseal(const SealCommand& command) {
  auto directory = DirectoryToSeal::Open(command.path);
  if (!directory.ok()) return Fail(directory.error());
  const Status ended = directory->Remove();
  if (!ended.ok()) return Fail(ended.error());
  const auto state = ReadAttribute(directory->path(), CAIRNFS_XATTR_SEALED);
  if (state.ok() && *state == "below") {
    return Fail(InvalidArgument(directory->path() + " is sealed by a directory above it: unseal that one"));
  }
  return TellSeal(directory->path(), "", command.json);
}

Status SealAtCommit(const std::string& path) {
  CAIRNFS_ASSIGN_OR_RETURN(DirectoryToSeal directory, DirectoryToSeal::Open(path));
  return directory.Set(kAtCommit);
}

}  // namespace cairnfs::tools
