#include "trash_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/printable.h"
#include "base/types.h"
#include "base/user.h"
#include "base/utc_text.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "output.h"
#include "progress.h"
#include "trash_tree.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;
using nlohmann::ordered_json;

Result<uint64_t> ParseId(const std::string& text) {
  uint64_t id = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (code == std::errc{} && end == text.data() + text.size() && id != 0) return id;
  return InvalidArgument(
      fmt::format("an entry of the trash has a number, as cairnfs trash ls lists it, not \"{}\"", text));
}

std::string TimeText(int64_t seconds) { return UtcText({.seconds = seconds}); }

std::string EntryLine(const control::TrashEntry& entry) {
  const std::string slash = entry.type() == "directory" ? "/" : "";
  return fmt::format("{:>12}  {}  {}  {:>10}  {}{}  ({} by {})\n", entry.id(), TimeText(entry.removed_seconds()),
                     TimeText(entry.expires_seconds()), daemon::FormatSize(entry.bytes()), Printable(entry.path()),
                     slash, entry.by_retention() ? "by retention, removed" : "removed", UserName(entry.removed_by()));
}

// A directory that is held open, so that it stays the one that was looked at. No right to list it is needed.
class HeldDirectory {
 public:
  explicit HeldDirectory(const std::string& path) : file_(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
    failure_ = file_ < 0 || fstat(file_, &info_) != 0 ? errno : 0;
  }
  ~HeldDirectory() {
    if (file_ >= 0) close(file_);
  }
  HeldDirectory(const HeldDirectory&) = delete;
  int failure() const { return failure_; }  // errno; 0: it is held
  const struct stat& info() const { return info_; }
  // Past all symbolic links.
  Result<std::string> Path() const {
    std::error_code error;
    std::string path = stdfs::read_symlink("/proc/self/fd/" + std::to_string(file_), error).string();
    if (error) return ErrnoError(error.value(), "cannot look where a directory lies");
    return path;
  }

 private:
  const int file_;
  int failure_ = 0;
  struct stat info_ = {};
};

struct Restoring {
  control::TrashRestoreRequest request;
  LocatedDaemon daemon;
};

// Which daemon is asked, and for what. TO says which mount is meant: that of the directory it leads to, whatever links
// are on the way. A number of another filesystem's would name another directory there.
Result<Restoring> RestoringTo(const TrashCommand& command, control::TrashRestoreRequest request) {
  const stdfs::path to(WithoutSlashes(Absolute(command.to)));
  const std::string name = to.filename().string();
  if (name.empty() || name == "." || name == "..") return InvalidArgument(command.to + " is no new name");
  const HeldDirectory directory(to.parent_path().string());
  if (directory.failure() != 0) return ErrnoError(directory.failure(), "cannot restore to " + command.to);
  CAIRNFS_ASSIGN_OR_RETURN(const std::string path, directory.Path());
  CAIRNFS_ASSIGN_OR_RETURN(LocatedDaemon daemon, LocateDaemon({.path = path, .data = {}}));
  const HeldDirectory mount(daemon.location.mount_point);
  if (mount.failure() != 0) return ErrnoError(mount.failure(), "cannot look at " + daemon.location.mount_point);
  if (mount.info().st_dev != directory.info().st_dev) {
    return InvalidArgument(
        fmt::format("{} lies on another filesystem than what is mounted at {}; restore to a place "
                    "there",
                    command.to, daemon.location.mount_point));
  }
  request.set_to_parent(directory.info().st_ino);
  request.set_to_name(name);
  return Restoring{std::move(request), std::move(daemon)};
}

Result<Restoring> RestoringFor(const TrashCommand& command) {
  control::TrashRestoreRequest request;
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t number, ParseId(command.id));
  request.set_id(number);
  if (!command.to.empty()) return RestoringTo(command, std::move(request));
  CAIRNFS_ASSIGN_OR_RETURN(LocatedDaemon daemon, LocateDaemon(command.target));
  return Restoring{std::move(request), std::move(daemon)};
}

// Of what the daemon says: what is not there has an exit code of its own.
int FailAbout(const Error& error) {
  const int code = Fail(error);
  return error.code == ErrorCode::kNotFound ? CAIRNFS_EXIT_NONE : code;
}

struct NotRestored {
  uint64_t id = 0;
  std::string path;
  Error why;
};
struct TreeRestored {
  uint64_t count = 0;  // the directory included
  std::vector<NotRestored> failed;
};

// Its path from the mount point on. kNotFound: the trash has no such entry.
Result<std::string> RestoreOne(LocatedDaemon& daemon, const control::TrashRestoreRequest& request) {
  const auto restored = daemon.client.TrashRestore(request);
  if (!restored.ok()) return restored.error().WithContext("not restored");
  return daemon.location.PathInMount(restored->path());
}

// The rest is tried where one fails, and each failure is told at the end.
TreeRestored RestoreBelow(LocatedDaemon& daemon, const TrashTree& tree, ProgressLine& line) {
  TreeRestored done;
  for (const control::TrashEntry& entry : tree.below) {
    control::TrashRestoreRequest request;
    request.set_id(entry.id());
    const auto restored = RestoreOne(daemon, request);
    if (!restored.ok()) done.failed.push_back({entry.id(), entry.path(), restored.error()});
    done.count += restored.ok() ? 1 : 0;
    line.Show(fmt::format("restored: {} of {}", done.count, tree.below.size()));
  }
  line.Clear();
  return done;
}

// Where the directory has its name back already, by a call that was cut short, this goes on with what lay below.
int RestoreTree(const TrashCommand& command, Restoring& restoring) {
  std::vector<control::TrashEntry> entries;
  const Status listed =
      restoring.daemon.client.TrashList([&](const control::TrashEntry& entry) { entries.push_back(entry); });
  if (!listed.ok()) return Fail(listed.error());
  const uint64_t id = restoring.request.id();
  const TrashTree tree = TreeBelow(entries, id);
  const bool is_entry =
      std::any_of(entries.begin(), entries.end(), [&](const auto& entry) { return entry.id() == id; });
  std::string path;
  if (!is_entry && !tree.below.empty() && !command.to.empty()) {
    return Fail(MakeError(ErrorCode::kInvalidArgument,
                          fmt::format("{} is in the trash no more: what lay below it comes back to where that is now. "
                                      "Leave out {}",
                                      id, Printable(command.to))));
  }
  if (is_entry || tree.below.empty()) {
    const auto top = RestoreOne(restoring.daemon, restoring.request);
    if (!top.ok()) return FailAbout(top.error());
    path = command.to.empty() ? *top : WithoutSlashes(Absolute(command.to));
  }
  ProgressLine line(!command.json);
  TreeRestored done = RestoreBelow(restoring.daemon, tree, line);
  done.count += path.empty() ? 0 : 1;
  for (const NotRestored& one : done.failed) {
    fmt::print(stderr, "cairnfs: {} ({}): {}\n", one.id, Printable(one.path), Printable(one.why.message));
  }
  if (tree.replaced > 0) {
    fmt::print(stderr, "cairnfs: {} of the same names, removed earlier, stay in the trash\n", tree.replaced);
  }
  if (command.json) {
    ordered_json json{{"restored", done.failed.empty()}, {"id", id}, {"path", path}, {"restored_count", done.count}};
    json["failed"] = ordered_json::array();
    for (const NotRestored& one : done.failed) {
      json["failed"].push_back({{"id", one.id}, {"path", one.path}, {"error", one.why.message}});
    }
    Print(JsonText(json));
  } else {
    const std::string where = path.empty() ? "below a directory that was restored before" : Printable(path);
    Print(fmt::format("restored: {} ({} {})\n", where, done.count, done.count == 1 ? "entry" : "entries"));
  }
  if (done.failed.empty()) return daemon::kExitDone;
  const Error& first = done.failed.front().why;
  return first.code == ErrorCode::kNotFound ? CAIRNFS_EXIT_NONE : daemon::ExitCodeOf(first);
}

}  // namespace

int RunTrashList(const TrashCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  ordered_json entries = ordered_json::array();
  uint64_t bytes = 0;
  const Status listed = located->client.TrashList([&](const control::TrashEntry& entry) {
    bytes += entry.bytes();
    if (command.json) {
      entries.push_back(FieldsOf(entry));
    } else {
      if (entries.empty()) {
        Print(
            fmt::format("{:>12}  {:<20}  {:<20}  {:>10}  {}\n", "ID", "REMOVED", "KEPT UNTIL", "SIZE", "WHERE IT LAY"));
        entries.push_back(true);  // the heading was printed
      }
      Print(EntryLine(entry));
    }
  });
  if (!listed.ok()) return Fail(listed.error());
  if (command.json) Print(JsonText({{"entries", std::move(entries)}, {"bytes", bytes}}));
  return daemon::kExitDone;
}

int RunTrashRestore(const TrashCommand& command) {
  auto restoring = RestoringFor(command);
  if (!restoring.ok()) return Fail(restoring.error());
  if (command.tree) return RestoreTree(command, *restoring);
  const auto restored = RestoreOne(restoring->daemon, restoring->request);
  if (!restored.ok()) return FailAbout(restored.error());
  const std::string path = command.to.empty() ? *restored : WithoutSlashes(Absolute(command.to));
  if (command.json) {
    Print(JsonText({{"restored", true}, {"id", restoring->request.id()}, {"path", path}}));
  } else {
    Print(fmt::format("restored: {}\n", Printable(path)));
  }
  return daemon::kExitDone;
}

int RunTrashEmpty(const TrashCommand& command) {
  control::TrashEmptyRequest request;
  if (!command.id.empty()) {
    const auto id = ParseId(command.id);
    if (!id.ok()) return Fail(id.error());
    request.set_id(*id);
  }
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  const std::string& named = command.target.path;
  struct stat info = {};
  const bool is_below = !named.empty() && stat(named.c_str(), &info) == 0 && info.st_ino != kRootInode.value;
  if (is_below && command.id.empty()) {
    return Fail(InvalidArgument(
        fmt::format("the trash is that of the whole filesystem, and {} is a part of it: name {} to remove all that "
                    "`trash ls` lists for good, or give the --id of one entry",
                    Printable(named), Printable(located->location.mount_point))));
  }
  const auto emptied = located->client.TrashEmpty(request);
  if (!emptied.ok()) return FailAbout(emptied.error());
  if (command.json) {
    Print(JsonText({{"entries", emptied->entries()}, {"bytes", emptied->bytes()}}));
  } else {
    Print(fmt::format("{} {} of {} gone for good\n", emptied->entries(), emptied->entries() == 1 ? "entry" : "entries",
                      daemon::FormatSize(emptied->bytes())));
  }
  return daemon::kExitDone;
}

}  // namespace cairnfs::tools
