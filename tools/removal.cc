#include "removal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <utility>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"
#include "open_below.h"
#include "retention/judge.h"
#include "retention/values.h"

namespace cairnfs::tools {
namespace {

constexpr int kPassesMax = 3;
constexpr const char* kKept = "it was pinned or held meanwhile, or somebody else has removed what was to go";

using retention::Glob;

std::string DrawGoingName(const std::string& name) {
  std::random_device random;
  std::uniform_int_distribution<int> letter('a', 'z');
  std::string letters;
  for (size_t i = 0; i < retention::kGoingLetters; ++i) letters += static_cast<char>(letter(random));
  return retention::GoingName(letters, name);
}

bool IsInode(const std::string& name, uint64_t inode) {
  struct stat info = {};
  return lstat(name.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_ino == inode;
}

int RenameNew(const std::string& from, const std::string& to) {
  return renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
}

// Of rmdir(2) of a name of retention's: directories in it are other users', or its removal had begun, so it is to be
// removed entry by entry. After any other failure it must not be: the trash may have it the next time.
bool HasOthers(int failure) { return failure == ENOTEMPTY; }

// Removes trees. What is gone already is no error.
class TreeRemoval {
 public:
  // `inode`: of the top; what has its name and is another one stays.
  TreeRemoval(std::string name, uint64_t inode, std::vector<Glob> keep_inside)
      : name_(std::move(name)), inode_(inode), keep_inside_(std::move(keep_inside)) {}

  Status Run() const {
    const OpenedDirectory directory = OpenBelow(AT_FDCWD, name_);
    struct stat info = {};
    if (directory == nullptr && errno == ENOENT) return {};
    if (directory == nullptr || fstat(dirfd(directory.get()), &info) != 0)
      return ErrnoError(errno, "cannot open " + name_);
    if (info.st_ino != inode_) return MakeError(ErrorCode::kStale, "something else has its name by now");
    return Finish(directory.get());
  }

 private:
  // Somebody else who goes on with the same may have given it its name back. What was listed before that is looked at
  // here was there before, too: nothing is removed that was made in it later.
  Status EmptyTop(DIR* directory) const {
    for (errno = 0; const dirent* entry = readdir(directory); errno = 0) {
      const std::string name = entry->d_name;
      if (IsDots(name) || MatchesAny(keep_inside_, name)) continue;
      if (!keep_inside_.empty() && !IsInode(name_, inode_)) return {};
      CAIRNFS_RETURN_IF_ERROR(RemoveTop(dirfd(directory), name));
    }
    return errno == 0 ? Status() : Status(ErrnoError(errno, "cannot list " + name_));
  }

  // Beside what stays, each goes to the trash as a whole, as the checkpoint else does: under a name of retention's.
  Status RemoveTop(int directory, const std::string& name) const {
    if (keep_inside_.empty()) return RemoveEntry(directory, name, name_ + "/" + name, 1);
    const std::string going = retention::IsGoingName(name) ? name : DrawGoingName(name);
    const auto failed = [&] { return ErrnoError(errno, fmt::format("cannot move {}/{} to the trash", name_, name)); };
    if (going != name && renameat2(directory, name.c_str(), directory, going.c_str(), RENAME_NOREPLACE) != 0) {
      return errno == ENOENT ? Status() : Status(failed());
    }
    if (unlinkat(directory, going.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
    const bool is_file = errno == ENOTDIR;  // whose unlink moves it there
    if (is_file || HasOthers(errno)) return RemoveEntry(directory, going, name_ + "/" + going, 1);
    const Error error = failed();
    if (going != name)
      static_cast<void>(renameat2(directory, going.c_str(), directory, name.c_str(), RENAME_NOREPLACE));
    return error;
  }

  Status Finish(DIR* directory) const {
    for (int pass = 1;; ++pass) {
      CAIRNFS_RETURN_IF_ERROR(EmptyTop(directory));
      if (rmdir(name_.c_str()) == 0) return {};
      const int failure = errno;
      rewinddir(directory);
      const Result<bool> keeps = KeepsOnly(directory);
      if (failure == ENOENT && (keep_inside_.empty() || keeps.ok())) return {};
      if (failure == ENOENT) return MakeError(ErrorCode::kFailed, "it got its name back before all else was removed");
      if (failure == ENOTEMPTY && keeps.ok() && *keeps) return GiveNameBack();
      if (failure != ENOTEMPTY || pass == kPassesMax) return ErrnoError(failure, "cannot remove " + name_);
      rewinddir(directory);
    }
  }

  // Whether there is something, of which all is to stay. An error: something else is there, or it cannot be listed.
  Result<bool> KeepsOnly(DIR* directory) const {
    size_t kept = 0;
    for (errno = 0; const dirent* entry = readdir(directory); errno = 0) {
      if (IsDots(entry->d_name)) continue;
      if (!MatchesAny(keep_inside_, entry->d_name))
        return MakeError(ErrorCode::kFailed, "more than what stays is there");
      ++kept;
    }
    return errno == 0 ? Result<bool>(kept > 0) : ErrnoError(errno, "cannot list " + name_);
  }

  // REQUIRES: a name that tells the one before, as the daemon has checked of the mark.
  Status GiveNameBack() const {
    const std::string before = retention::NameBeforeGoing(name_).value_or(name_);
    if (RenameNew(name_, before) == 0 || errno == ENOENT) return {};
    return ErrnoError(errno, fmt::format("what stays of {0} cannot get that name back, and is in {1}", before, name_));
  }

  static Status Remove(int parent, const std::string& name, const std::string& path, int depth) {
    if (depth > kOpenBelowLevelsMax) {
      return MakeError(ErrorCode::kFailed,
                       fmt::format("directories lie in it more than {} levels deep", kOpenBelowLevelsMax));
    }
    const OpenedDirectory directory = OpenBelow(parent, name);
    if (directory == nullptr && errno == ENOENT) return {};
    if (directory == nullptr && errno == EXDEV) return MakeError(ErrorCode::kBusy, path + " is a mount point");
    if (directory == nullptr) return ErrnoError(errno, "cannot open " + path);
    return FinishBelow(directory.get(), parent, name, path, depth);
  }

  // Others may go on making files there.
  static Status FinishBelow(DIR* directory, int parent, const std::string& name, const std::string& path, int depth) {
    for (int pass = 1;; ++pass) {
      CAIRNFS_RETURN_IF_ERROR(Empty(directory, path, depth));
      if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
      if (errno != ENOTEMPTY || pass == kPassesMax) return ErrnoError(errno, "cannot remove " + path);
      rewinddir(directory);
    }
  }

  static Status Empty(DIR* directory, const std::string& path, int depth) {
    const int file = dirfd(directory);
    for (errno = 0; const dirent* entry = readdir(directory); errno = 0) {
      const std::string name = entry->d_name;
      if (IsDots(name)) continue;
      CAIRNFS_RETURN_IF_ERROR(RemoveEntry(file, name, path + "/" + name, depth));
    }
    if (errno != 0) return ErrnoError(errno, "cannot list " + path);
    return {};
  }

  static Status RemoveEntry(int parent, const std::string& name, const std::string& path, int depth) {
    struct stat info = {};
    if (fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      return errno == ENOENT ? Status() : Status(ErrnoError(errno, "cannot look at " + path));
    }
    if (S_ISDIR(info.st_mode)) return Remove(parent, name, path, depth + 1);
    if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return {};
    return ErrnoError(errno, "cannot remove " + path);
  }

  const std::string name_;
  const uint64_t inode_;
  const std::vector<Glob> keep_inside_;
};

Status RemoveTree(const std::string& name, uint64_t inode, const std::vector<std::string>& keep_inside) {
  CAIRNFS_ASSIGN_OR_RETURN(auto globs, retention::ParseGlobs(keep_inside));
  return TreeRemoval(name, inode, std::move(globs)).Run();
}

}  // namespace

Result<size_t> CountKeptInside(const std::string& name, const std::vector<Glob>& keep_inside) {
  if (keep_inside.empty()) return size_t{0};
  const OpenedDirectory directory = OpenBelow(AT_FDCWD, name);
  if (directory == nullptr) return ErrnoError(errno, "cannot open " + name);
  size_t kept = 0;
  for (errno = 0; const dirent* entry = readdir(directory.get()); errno = 0) {
    kept += !IsDots(entry->d_name) && MatchesAny(keep_inside, entry->d_name) ? 1 : 0;
  }
  if (errno != 0) return ErrnoError(errno, "cannot list " + name);
  return kept;
}

bool CanGetNameBack(const std::string& name) { return retention::NameBeforeGoing(DrawGoingName(name)).has_value(); }

std::string Removal::WhyItStays(const std::string& name) const {
  return retention::WhyItStays(ReadProtectionAndOpen(name, own_opens_), Clock::WallTime()).value_or("");
}

// To a directory with this name rmdir(2) does that, in one step, and refuses it of one that was pinned or held. Not
// removed, and no reason why: it has to be removed entry by entry, as something stays inside, or directories in it are
// other users'.
Result<Removal::Outcome> Removal::MoveToTrash(const std::string& going) const {
  if (!keep_inside_.empty()) return Outcome{};
  if (rmdir(going.c_str()) == 0) return Outcome{.removed = true};
  if (errno == EBUSY) return Outcome{false, kKept};
  if (errno == ENOENT) return Outcome{false, "somebody has given it its name back"};
  if (HasOthers(errno)) return Outcome{};
  return ErrnoError(errno, "it cannot be moved to the trash, and stays");
}

// Why it stays; empty: from now on it goes, whatever happens. The daemon sets the mark only while it has that name, and
// then it keeps it.
std::string Removal::BeginRemoval(const std::string& going, uint64_t inode) const {
  const OpenedDirectory directory = OpenBelow(AT_FDCWD, going);
  struct stat info = {};
  if (directory == nullptr || fstat(dirfd(directory.get()), &info) != 0) {
    return ErrnoError(errno, "its removal cannot begin").message;
  }
  if (info.st_ino != inode) return "something else has its name by now";
  const std::string mark = retention::RemovalMarkText({going, keep_inside_});
  if (fsetxattr(dirfd(directory.get()), CAIRNFS_XATTR_REMOVING, mark.data(), mark.size(), 0) == 0) return {};
  if (errno == EBUSY) return kKept;
  if (errno == ENOENT) return "somebody has given it its name back";
  return ErrnoError(errno, "its removal cannot begin").message;
}

// The daemon refuses the rename of one that is pinned or held. A file may have been opened, or PINNED made, right
// before it.
Result<Removal::Outcome> Removal::Remove(const std::string& name, uint64_t inode,
                                         const WhyItStaysToo& also_asks) const {
  constexpr const char* kReplaced = "something else has its name by now";
  if (!IsInode(name, inode)) return Outcome{false, kReplaced};
  if (std::string why = WhyItStays(name); !why.empty()) return Outcome{false, std::move(why)};
  const std::string going = DrawGoingName(name);
  if (RenameNew(name, going) != 0) {
    if (errno == EBUSY) return Outcome{false, kKept};
    if (errno == ENOENT) return Outcome{false, "somebody has removed it"};
    return ErrnoError(errno, fmt::format("cannot rename {} in order to remove it", name));
  }
  std::string why = IsInode(going, inode) ? WhyItStays(going) : kReplaced;
  std::optional<Error> failure;
  if (why.empty() && also_asks) {
    why = also_asks(going);
    if (why.empty()) why = WhyItStays(going);  // that may have taken long
  }
  if (why.empty()) {
    const auto in_trash = MoveToTrash(going);
    if (in_trash.ok() && in_trash->removed) return *in_trash;
    if (!in_trash.ok()) failure = in_trash.error();
    why = failure ? failure->message : in_trash->why_not;
  }
  if (why.empty()) why = BeginRemoval(going, inode);
  if (why.empty()) {
    const Status removed = RemoveTree(going, inode, keep_inside_);
    if (removed.ok()) return Outcome{.removed = true};
    return removed.error().WithContext(fmt::format("{} is now {} and not all removed", name, going));
  }
  if (RenameNew(going, name) == 0 || errno == ENOENT) {
    if (failure) return failure->WithContext(name);
    return Outcome{false, std::move(why)};
  }
  return ErrnoError(errno, fmt::format("{} stays ({}), and is now {}: it cannot be renamed back", name, why, going));
}

namespace {

constexpr int64_t kOthersHaveSeconds = 10;  // after the rename, to begin

LeftOver DescribeLeft(const std::string& name, const struct stat& info, std::optional<uid_t> only_of) {
  LeftOver left{.name = name, .inode = info.st_ino, .name_before = retention::NameBeforeGoing(name)};
  if (only_of && info.st_uid != *only_of) return left;
  const auto removing = ReadAttribute(name, CAIRNFS_XATTR_REMOVING);
  if (removing.ok() && *removing) {
    auto mark = retention::ParseRemovalMark(**removing);
    if (!mark.ok()) return left;  // of a newer version
    left.next = LeftOver::Next::kGoesOn;
    left.keep_inside = std::move(mark->keep_inside);
  } else if (removing.ok()) {
    // A rename changes the directory's time of change.
    const bool is_new = Clock::WallTime().seconds < info.st_ctim.tv_sec + kOthersHaveSeconds;
    if (is_new) left.next = LeftOver::Next::kWaits;
    if (!is_new && left.name_before) left.next = LeftOver::Next::kComesBack;
  }
  return left;
}

Status TakeUp(const LeftOver& left, std::vector<std::string>& told) {
  if (left.next == LeftOver::Next::kGoesOn) {
    const Status removed = RemoveTree(left.name, left.inode, left.keep_inside);
    if (!removed.ok()) return removed.error().WithContext(left.name + " is left of a removal that was cut short");
    const char* but = left.keep_inside.empty() ? "" : ", but for what stays of it (keep-inside)";
    told.push_back(fmt::format("{} was left of a removal that was cut short, and is removed{}", left.name, but));
  }
  if (left.next != LeftOver::Next::kComesBack) return {};
  if (RenameNew(left.name, *left.name_before) == 0) {
    told.push_back(fmt::format("{} has its name back: its removal was cut short before it began", *left.name_before));
  } else if (errno == EEXIST) {
    told.push_back(fmt::format("{} cannot get its name {} back, which is taken by now", left.name, *left.name_before));
  } else if (errno != ENOENT && errno != EBUSY) {
    return ErrnoError(errno, fmt::format("cannot rename {} to {}", left.name, *left.name_before));
  }
  return {};
}

}  // namespace

std::string LeftOver::Sentence() const {
  switch (next) {
    case Next::kGoesOn: return fmt::format("{} is being removed, or left of a removal that was cut short: --now", name);
    case Next::kComesBack:
      return fmt::format("{} is left of a removal that was cut short: --now gives it its name {} back", name,
                         *name_before);
    case Next::kWaits:
      return fmt::format("{} is being removed just now{}", name, name_before ? ": it was " + *name_before : "");
    case Next::kIsTold: break;
  }
  return fmt::format("{0} is being removed, or left of a removal that was cut short: then rm -r {0}", name);
}

Result<std::vector<LeftOver>> FindLeft(std::optional<uid_t> only_of) {
  const OpenedDirectory directory = OpenBelow(AT_FDCWD, ".");
  if (directory == nullptr) return ErrnoError(errno, "cannot list the directory");
  std::vector<LeftOver> left;
  for (errno = 0; const dirent* entry = readdir(directory.get()); errno = 0) {
    struct stat info = {};
    const bool is_left = retention::IsGoingName(entry->d_name) && lstat(entry->d_name, &info) == 0;
    if (is_left && S_ISDIR(info.st_mode)) left.push_back(DescribeLeft(entry->d_name, info, only_of));
  }
  if (errno != 0) return ErrnoError(errno, "cannot list the directory");
  return left;
}

Status TakeUpLeft(std::optional<uid_t> only_of, std::vector<std::string>& told) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<LeftOver> left, FindLeft(only_of));
  Status first;
  for (const LeftOver& one : left) {
    Status taken = TakeUp(one, told);
    if (first.ok()) first = std::move(taken);
  }
  return first;
}

}  // namespace cairnfs::tools
