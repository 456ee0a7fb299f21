#include "run_directory.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/types.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "keeping.h"
#include "locate.h"

namespace cairnfs::tools {
namespace {

using retention::Policy;

// A descriptor that is closed.
class Opened {
 public:
  explicit Opened(int file) : file_(file) {}
  Opened(const Opened&) = delete;
  ~Opened() {
    if (file_ >= 0) close(file_);
  }
  int get() const { return file_; }

 private:
  const int file_;
};

Error RootIsNoRun(const std::string& path) {
  return InvalidArgument(path + " is the root of a filesystem; a policy is for the directory of a run in it");
}

}  // namespace

Result<RunDirectory> RunDirectory::Enter(const std::string& directory) {
  RunDirectory run;
  run.path_ = WithoutSlashes(Absolute(directory));
  struct stat info = {};
  if (chdir(run.path_.c_str()) != 0) return ErrnoError(errno, "cannot enter " + run.path_);
  std::error_code no_path;
  run.path_ = std::filesystem::current_path(no_path).string();  // without symbolic links
  if (no_path) return ErrnoError(no_path.value(), "cannot tell where " + directory + " lies");
  const auto mount = LocateMount(run.path_);
  if (!mount.ok()) return mount.error();
  if (stat(".", &info) != 0) return ErrnoError(errno, "cannot look at " + run.path_);
  if (info.st_ino == kRootInode.value) return RootIsNoRun(run.path_);
  run.owner_ = info.st_uid;
  return run;
}

Result<RunDirectory> RunDirectory::EnterBelow(const std::string& mount_point, const std::string& path, uint64_t inode) {
  RunDirectory run;
  run.path_ = mount_point + "/" + path;
  const Opened root(open(mount_point.c_str(), O_PATH | O_CLOEXEC | O_DIRECTORY));
  if (root.get() < 0) return ErrnoError(errno, "cannot open " + mount_point);
  open_how how = {};
  how.flags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS;
  const Opened file(static_cast<int>(syscall(SYS_openat2, root.get(), path.c_str(), &how, sizeof how)));
  struct stat info = {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) return ErrnoError(errno, "cannot open " + run.path_);
  if (info.st_ino != inode) return MakeError(ErrorCode::kStale, run.path_ + " is another directory by now");
  if (fchdir(file.get()) != 0) return ErrnoError(errno, "cannot enter " + run.path_);
  run.owner_ = info.st_uid;
  return run;
}

std::optional<uid_t> RunDirectory::OnlyOf() const {
  return geteuid() == 0 && owner_ != 0 ? std::optional(owner_) : std::nullopt;
}

Result<std::optional<Policy>> RunDirectory::ReadPolicy() const {
  CAIRNFS_ASSIGN_OR_RETURN(const auto text, ReadAttribute(".", CAIRNFS_XATTR_RETAIN));
  if (!text) return std::optional<Policy>();
  auto policy = retention::ParsePolicy(*text);
  if (!policy.ok()) return policy.error().WithContext("the policy of " + path_);
  return std::optional(*std::move(policy));
}

Status RunDirectory::SetPolicy(const Policy* policy) const {
  const std::string text = policy == nullptr ? "" : retention::PolicyText(*policy);
  const int done = policy == nullptr ? removexattr(".", CAIRNFS_XATTR_RETAIN)
                                     : setxattr(".", CAIRNFS_XATTR_RETAIN, text.data(), text.size(), 0);
  if (done != 0 && (policy != nullptr || errno != ENODATA)) {
    Error error = ErrnoError(errno, "cannot change the policy of " + path_);
    if (error.code == ErrorCode::kPermission) error.message += " (it is for its owner and root)";
    return error;
  }
  const Opened file(open(".", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (file.get() >= 0 && fsync(file.get()) == 0) return {};
  return ErrnoError(errno, "the policy of " + path_ + " may not be durable");
}

std::optional<std::string> RunDirectory::ReadLastTime() const {
  auto text = ReadAttribute(".", CAIRNFS_XATTR_RETAINED);
  return text.ok() ? *std::move(text) : std::nullopt;
}

}  // namespace cairnfs::tools
