#include "checkpoints.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "cairnfs/cairnfs.h"
#include "control/mount_table.h"
#include "locate.h"
#include "retention/values.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kCommitBytesMax = 64 * 1024;

// Of a directory that was not committed; those after them do not count for its time.
constexpr size_t kEntriesLookedAtMax = 10'000;

double SecondsOf(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// When the directory, or what lies right in it, was last changed. A file that is written anew does not change its
// directory.
double LastChange(const std::string& path, const struct stat& directory) {
  double last = SecondsOf(directory.st_mtim);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(path.c_str()), &closedir);
  if (stream == nullptr) return last;
  size_t entries = 0;
  for (const dirent* entry = readdir(stream.get()); entry != nullptr && entries < kEntriesLookedAtMax;
       entry = readdir(stream.get()), ++entries) {
    const std::string_view name = entry->d_name;
    struct stat info = {};
    if (name == "." || name == "..") continue;
    const bool is_there = fstatat(dirfd(stream.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_there) last = std::max(last, SecondsOf(info.st_mtim));
  }
  return last;
}

// kUnavailable: the directory lies in no CairnFS.
Status CheckIsMounted(const std::string& directory) {
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) {
    const int error = errno;
    const auto mount = LocateMount(directory);
    return mount.ok() ? ErrnoError(error, "cannot list " + directory) : mount.error();
  }
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<MountEntry> mounts, control::ListMounts());
  const std::string device = DeviceText(info.st_dev);
  for (const MountEntry& mount : mounts) {
    if (mount.device == device) return {};
  }
  return MakeError(ErrorCode::kUnavailable, "no CairnFS is mounted at " + directory);
}

}  // namespace

// Whether those keys are there that are used without a look, and of their types.
static bool IsSound(const nlohmann::ordered_json& commit) {
  constexpr double kSecondsMax = 1e11;  // the year 5138
  if (!commit.is_object()) return false;
  const auto has = [&](const char* key, auto is_right) {
    const auto found = commit.find(key);
    return found != commit.end() && is_right(*found);
  };
  const auto is_text = [](const auto& value) { return value.is_string(); };
  const auto is_count = [](const auto& value) { return value.is_number_unsigned(); };
  const auto is_time = [](const auto& value) {
    return value.is_number() && value.template get<double>() >= 0 && value.template get<double>() < kSecondsMax;
  };
  return has("committed_at", is_time) && has("revision", is_count) && has("uid", is_count) && has("host", is_text) &&
         has("command", is_text);
}

uint64_t Checkpoint::revision() const { return commit ? commit->value("revision", uint64_t{0}) : 0; }

Result<std::optional<nlohmann::ordered_json>> ReadCommit(const std::string& path) {
  std::string text(kCommitBytesMax, '\0');
  const ssize_t size = lgetxattr(path.c_str(), CAIRNFS_XATTR_COMMIT, text.data(), text.size());
  const bool has_none = size < 0 && (errno == ENODATA || errno == ENOTSUP || errno == ENOENT);
  if (has_none) return std::optional<nlohmann::ordered_json>();
  if (size < 0) return ErrnoError(errno, "cannot read the commit of " + path);
  text.resize(static_cast<size_t>(size));
  auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  // Elsewhere anybody may have set it to anything.
  if (!IsSound(json)) return std::optional<nlohmann::ordered_json>();
  return std::optional(std::move(json));
}

static Result<KnownCommit> ReadKnown(const std::string& path, const struct stat& info) {
  // Who may list it and not enter it can load nothing.
  if (faccessat(AT_FDCWD, path.c_str(), R_OK | X_OK, AT_EACCESS) != 0 && errno != ENOENT) {
    return ErrnoError(errno, "cannot look into " + path);
  }
  KnownCommit known{.inode = info.st_ino, .ctime = SecondsOf(info.st_ctim)};
  CAIRNFS_ASSIGN_OR_RETURN(known.commit, ReadCommit(path));
  known.is_left = lgetxattr(path.c_str(), CAIRNFS_XATTR_REMOVING, nullptr, 0) >= 0;
  const bool has_none = known.is_left || errno == ENODATA || errno == ENOTSUP || errno == ENOENT;
  return has_none ? Result<KnownCommit>(std::move(known)) : ErrnoError(errno, "cannot look at " + path);
}

Result<CheckpointList> ListCheckpoints(const std::string& directory, const StepPattern& pattern, KnownCommits* known) {
  KnownCommits seen;
  std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(directory.c_str()), &closedir);
  if (stream == nullptr) return ErrnoError(errno, "cannot list " + directory);
  CheckpointList list;
  const auto next = [&] {
    errno = 0;  // or that of a call before would be taken for the listing's
    return readdir(stream.get());
  };
  while (const dirent* entry = next()) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string path = (stdfs::path(directory) / name).string();
    const auto name_before = retention::NameBeforeGoing(name);
    const auto step = pattern.StepOf(name_before.value_or(name));
    if (step.ok() && !*step) continue;
    if (name_before) {
      const std::string path_before = (stdfs::path(directory) / *name_before).string();
      list.in_removal.push_back(fmt::format("{}: retention removes it; it is now {}", path_before, name));
      continue;
    }
    struct stat info = {};
    if (lstat(path.c_str(), &info) != 0) continue;  // it went away meanwhile
    if (S_ISLNK(info.st_mode)) list.skipped.push_back(path + " is a symbolic link, and no directory");
    if (!S_ISDIR(info.st_mode)) continue;
    if (!step.ok()) {
      list.skipped.push_back(fmt::format("{}: {}", path, step.error().message));
      continue;
    }
    const auto before = known == nullptr ? KnownCommits::iterator() : known->find(path);
    const bool is_known = known != nullptr && before != known->end() && before->second.inode == info.st_ino &&
                          before->second.ctime == SecondsOf(info.st_ctim);
    auto read = is_known ? Result<KnownCommit>(before->second) : ReadKnown(path, info);
    const bool is_refused = !read.ok() && read.error().code == ErrorCode::kPermission;
    if (is_refused) list.skipped.push_back(path + " may not be read by this user");
    if (is_refused) continue;
    if (!read.ok()) return read.error();
    if (known != nullptr) seen[path] = *read;
    if (read->is_left) {
      list.in_removal.push_back(path + ": retention has removed it, but for what stays inside it");
      continue;
    }
    auto commit = std::move(read->commit);
    const double time = commit             ? commit->value("committed_at", 0.0)
                        : known == nullptr ? LastChange(path, info)
                                           : SecondsOf(info.st_mtim);
    list.checkpoints.push_back({path, name, *step, std::move(commit), time, info.st_ino});
  }
  if (errno != 0) return ErrnoError(errno, "cannot list " + directory);
  if (known != nullptr) *known = std::move(seen);
  std::sort(list.checkpoints.begin(), list.checkpoints.end(),
            [](const Checkpoint& left, const Checkpoint& right) { return left.name < right.name; });
  return list;
}

Result<CheckpointList> ListRun(const std::string& directory, const StepPattern& pattern, KnownCommits* known) {
  CAIRNFS_RETURN_IF_ERROR(CheckIsMounted(directory));
  return ListCheckpoints(directory, pattern, known);
}

}  // namespace cairnfs::tools
