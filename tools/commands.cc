#include "commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/context.h"
#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "control/convert.h"
#include "control/mount_table.h"
#include "daemon/data_directory.h"
#include "daemon/exit_codes.h"
#include "daemon/offline_check.h"
#include "fuse/server.h"
#include "mount_holders.h"
#include "output.h"
#include "progress.h"
#include "remount.h"
#include "spawn.h"
#include "stop_commands.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

constexpr int kLookForHoldersMs = 2000;
constexpr std::chrono::minutes kTellStopEvery{1};
constexpr auto kWaitProgressEvery = std::chrono::milliseconds(500);

// The daemon serves on as long as the filesystem is mounted anywhere, which may be for ever: true once that was told.
bool TellWhoHolds(const MountEntry& mount, uint64_t daemon_pid) {
  std::vector<MountHolder> holders = FindMountHolders(mount);
  if (holders.empty()) return false;
  std::string message =
      fmt::format("cairnfs: {} is unmounted, but the filesystem is still mounted elsewhere:\n", mount.mount_point);
  for (const MountHolder& holder : holders) {
    message +=
        fmt::format("  at {} in the mount namespace of process {} ({})\n", holder.mount_point, holder.pid, holder.name);
  }
  fmt::print(stderr,
             "{}cairnfs: waiting until it is unmounted there too (nsenter -t {} -m umount {}) or those processes end; "
             "\"kill {}\" ends the daemon all the same, once everything is durable\n",
             message, holders.front().pid, holders.front().mount_point, daemon_pid);
  return true;
}

// Whether it was told that the daemon stops, and waits for copies on other nodes.
bool TellWhatTheStopWaitsFor(const MountEntry& mount) {
  auto client = Connect({mount.source, mount.mount_point});
  const auto status = client.ok() ? client->GetStatus({}) : Result<control::StatusReply>(client.error());
  if (!status.ok() || !status->has_stop() || status->stop().waits_for().empty()) return false;
  fmt::print(stderr, "cairnfs: {} is unmounted; its daemon waits for copies, for {} s at most (commit_wait_max): {}\n",
             mount.mount_point, status->stop().seconds_left_max(), Printable(status->stop().waits_for()));
  return true;
}

// Waits for the end of the daemon, which is no child, or until it has let go of its data: a look at a stranger's
// process may keep one of its threads for good (fs/descriptor_looks.h).
void WaitForEnd(uint64_t pid, const MountEntry& mount) {
  if (pid == 0) return;
  int fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  if (fd < 0) return;
  pollfd wait{fd, POLLIN, 0};
  auto tell_stop_at = Clock::Now();
  for (bool told = false;;) {
    int ready = poll(&wait, 1, kLookForHoldersMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) break;
    if (ready < 0) continue;
    if (!daemon::IsInUse(mount.source)) break;
    if (!told) told = TellWhoHolds(mount, pid);
    if (Clock::Now() >= tell_stop_at && TellWhatTheStopWaitsFor(mount)) tell_stop_at = Clock::Now() + kTellStopEvery;
  }
  close(fd);
}

// The pid of the daemon that holds a data directory, from its LOCK. A user who may not use the control socket cannot
// read that either.
uint64_t HolderPid(const std::string& data) {
  auto text = daemon::ReadLockText(data);
  if (!text.ok() || text->empty() || text->starts_with("failed") || !daemon::IsInUse(data)) return 0;
  uint64_t pid = std::strtoull(text->c_str(), nullptr, 10);
  // The process may be a check, or one of another pid namespace.
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  std::string name;
  return std::getline(comm, name) && name == "cairnfsd" ? pid : 0;
}

// Returns once the daemon has ended, with the exit code for what it left.
int WaitAndTellEnd(uint64_t pid, const MountEntry& mount) {
  WaitForEnd(pid, mount);
  auto left = daemon::ReadLastEnd(mount.source);
  if (!left.ok()) {
    return Fail(left.error().WithContext("unmounted, but whether everything became durable cannot be told"));
  }
  if (left->starts_with("failed: ")) {
    return Fail(MakeError(ErrorCode::kFailed, "unmounted, but not everything became durable: " + left->substr(8)));
  }
  if (pid != 0 && left->starts_with(fmt::format("{} ", pid))) {
    return Fail(MakeError(ErrorCode::kFailed,
                          "unmounted, but the daemon ended before everything was durable; its log tells why"));
  }
  return daemon::kExitDone;
}

// fsync of anything in the mount is a sync point for all that this host did before.
Status SyncThroughMount(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) {
    std::string parent = stdfs::path(Absolute(path)).parent_path().string();
    fd = open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  if (fd < 0) return ErrnoError(errno, "cannot open " + path);
  int synced = fsync(fd);
  int error = errno;
  close(fd);
  if (synced != 0) return ErrnoError(error, "cannot make " + path + " durable");
  return {};
}

// Of a check, from when it is made on.
std::function<void(const control::CheckProgress&)> ShowsCheck(ProgressLine& line) {
  return [&line, phase = std::string(), began = Clock::Now()](const control::CheckProgress& state) mutable {
    const auto now = Clock::Now();
    if (state.phase() != phase) began = now;
    phase = state.phase();
    if (phase.empty()) return line.Show("checking: waiting for what was written before");
    const bool is_of_bytes = state.bytes_done() > 0 && state.bytes_done() < state.bytes_total();
    line.Show("checking " + phase +
              (is_of_bytes ? ": " + ShareText(state.bytes_done(), state.bytes_total(), now - began) : std::string()));
  };
}

// nullopt where no daemon runs.
Result<std::optional<control::CheckReply>> CheckBesideDaemon(
    const Location& location, const std::function<void(const control::CheckProgress&)>& on_progress) {
  CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect(location));
  auto report = client.Check(on_progress);
  if (report.ok() || report.error().code != ErrorCode::kUnavailable) return report;
  return report.error().WithContext("the check was not finished");
}

int PrintCheck(const control::CheckReply& reply, const std::optional<std::string>& last_end, bool json) {
  Print(json ? CheckJson(reply, last_end) : CheckText(reply, last_end));
  return reply.problem_count() == 0 ? daemon::kExitDone : daemon::kExitProblems;
}

}  // namespace

std::string Absolute(const std::string& path) {
  std::error_code error;
  stdfs::path absolute = stdfs::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool NamesMountPoint(const std::string& path, const std::string& mount_point) {
  if (WithoutSlashes(Absolute(path)) == mount_point) return true;
  std::error_code error;
  return stdfs::canonical(path, error).string() == mount_point && !error;
}

int Fail(const Error& error) {
  fmt::print(stderr, "cairnfs: {}\n", error.message);
  return daemon::ExitCodeOf(error);
}

std::vector<std::string> DaemonArguments(const MountCommand& command) {
  std::vector<std::string> arguments;
  if (!command.mount_point.empty()) arguments.push_back(Absolute(command.mount_point));
  if (!command.data.empty()) arguments.insert(arguments.end(), {"--data", Absolute(command.data)});
  if (!command.config.empty()) arguments.insert(arguments.end(), {"--config", Absolute(command.config)});
  for (const std::string& option : command.options) arguments.insert(arguments.end(), {"-o", option});
  return arguments;
}

int RunMount(const MountCommand& command) {
  std::vector<std::string> arguments = DaemonArguments(command);
  if (IsRemount(command)) {
    const Status remounted = Remount(command);
    return remounted.ok() ? int{daemon::kExitDone} : Fail(remounted.error());
  }
  if (command.foreground) return Fail(BecomeDaemon(arguments));
  auto report = StartInBackground(arguments);
  if (!report.ok()) return Fail(report.error());
  if (report->ready) return daemon::kExitDone;
  fmt::print(stderr, "cairnfs: {}\n", report->message);
  return report->exit_code;
}

int RunUmount(const UmountCommand& command) {
  const auto deadline =
      command.deadline.empty() ? Result(std::chrono::milliseconds(0)) : ParseDeadline(command.deadline);
  if (!deadline.ok()) return Fail(deadline.error());
  auto mount = LocateMount(command.mount_point);
  if (!mount.ok() && command.unguard) {  // nothing is mounted there
    const Status unguarded = fuse::Unguard(command.mount_point);
    return unguarded.ok() ? int{daemon::kExitDone} : Fail(unguarded.error());
  }
  if (!mount.ok()) return Fail(mount.error());
  if (!NamesMountPoint(command.mount_point, mount->mount_point)) {
    return Fail(MakeError(ErrorCode::kUnavailable,
                          command.mount_point + " is not a mount point; it lies in the mount " + mount->mount_point));
  }
  if (*deadline > std::chrono::milliseconds(0)) return UmountWithin(command, *mount, *deadline);
  uint64_t pid = 0;
  if (auto client = Connect({mount->source, mount->mount_point}); client.ok()) {
    if (auto status = client->GetStatus({}); status.ok()) pid = status->pid();
    static_cast<void>(client->PausePolicies().ok());  // what applies them would keep the mount busy
  }
  if (pid == 0) pid = HolderPid(mount->source);
  std::string last_end;
  if (pid == 0 && !daemon::IsInUse(mount->source)) {
    auto text = daemon::ReadLastEnd(mount->source);
    last_end = text.ok() ? *text : text.error().message;
  }
  // When called in the mount, this process must not be the one that keeps it busy.
  static_cast<void>(chdir("/") == 0);
  if (auto unmounted =
          fuse::Unmount(mount->mount_point, command.lazy ? fuse::Unmounting::kLazily : fuse::Unmounting::kUnlessBusy);
      !unmounted.ok())
    return Fail(unmounted.error());
  const Status unguarded = command.unguard ? fuse::Unguard(mount->mount_point) : Status();
  if (!unguarded.ok()) fmt::print(stderr, "cairnfs: {}\n", unguarded.error().message);
  if (!last_end.empty()) {
    return Fail(MakeError(
        ErrorCode::kFailed,
        fmt::format("unmounted; its daemon had ended before, without closing {} cleanly (\"{}\"): what no sync point "
                    "covered may be lost",
                    mount->source, last_end)));
  }
  const int ended = command.lazy ? int{daemon::kExitDone} : WaitAndTellEnd(pid, *mount);
  return ended == daemon::kExitDone && !unguarded.ok() ? daemon::ExitCodeOf(unguarded.error()) : ended;
}

namespace {

// While it lives, shows on a terminal how much of what this host has to write is on the disk, and has its copies. A
// user who may not ask for the daemon's status sees only that it waits.
class WaitProgress {
 public:
  WaitProgress(const Location& location, bool is_wanted) : line_(is_wanted) {
    if (line_.is_shown()) {
      thread_ = std::jthread([this, location](std::stop_token stop) { Run(Context(std::move(stop)), location); });
    }
  }

 private:
  void Run(const Context& context, const Location& location) {
    const auto began = Clock::Now();
    uint64_t bytes_max = 0;  // that were to be written since, at once
    while (context.Sleep(kWaitProgressEvery)) {
      auto client = Connect(location);
      const auto left = client.ok() ? client->GetUnwritten() : Result<control::UnwrittenReply>(client.error());
      std::string text = "waiting until everything is durable";
      // What the disk has counts, and not what is durable: all of a round becomes so at its end.
      bytes_max = std::max(bytes_max, left.ok() ? left->bytes() : 0);
      if (left.ok() && bytes_max > 0) {
        text += ": " + ShareText(bytes_max - left->bytes(), bytes_max, Clock::Now() - began, left->bytes_per_second());
      }
      line_.Show(text);
    }
  }

  ProgressLine line_;
  std::jthread thread_;  // ends before the line does
};

}  // namespace

int RunWait(const std::string& named, bool json) {
  std::error_code dangles;
  const std::string resolved = stdfs::canonical(named, dangles).string();
  const std::string path = dangles ? named : resolved;  // a link that leads nowhere stands for itself
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return Fail(ErrnoError(errno, "cannot wait for " + named));
  auto mount = LocateMount(path);
  if (!mount.ok()) return Fail(mount.error());
  auto client = Connect({mount->source, mount->mount_point});
  if (!client.ok()) return Fail(client.error());
  std::optional<WaitProgress> progress;
  progress.emplace(Location{mount->source, mount->mount_point}, !json);
  std::optional<Status> answer;
  if (DeviceText(info.st_dev) == mount->device) answer = client->Wait(InodeId{info.st_ino}, Absolute(path));
  Status waited = answer ? *answer : SyncThroughMount(path);
  progress.reset();
  char durability[16] = {};
  const bool is_told =
      waited.ok() && lgetxattr(path.c_str(), CAIRNFS_XATTR_DURABILITY, durability, sizeof durability - 1) > 0;
  if (is_told && !answer && durability == std::string_view(CAIRNFS_DURABILITY_PENDING)) {
    fmt::print(stderr, "cairnfs: the daemon could not be asked: waited for what was written on this host alone\n");
  }
  if (is_told && durability == std::string_view(CAIRNFS_DURABILITY_LOST)) {
    waited = MakeError(
        ErrorCode::kIo,
        "bytes of " + path +
            " are lost: they could not be stored, or the host that had them "
            "is gone; a rename of the directory names the files, and so does getfattr -n " CAIRNFS_XATTR_DURABILITY
            " of each of them");
  }
  if (!waited.ok()) return Fail(waited.error());
  if (json) Print("{\"durable\": true}\n");
  return daemon::kExitDone;
}

int RunGc(const GcCommand& command) {
  const bool json = command.json;
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  ProgressLine line(!json);
  control::GcProgress first;  // of the phase
  Clock::time_point first_at;
  control::GcRequest request;
  request.set_after_restore(command.after_restore);
  auto result = located->client.Gc(request, [&](const control::GcProgress& progress) {
    if (json || !progress.running()) return;
    const bool is_new = first.phase() != progress.phase();
    if (is_new) {
      first = progress;
      first_at = Clock::Now();
    }
    const std::string text = GcLine(progress, first, Clock::Now() - first_at);
    line.Show(text);
    if (!line.is_shown() && is_new) fmt::print(stderr, "cairnfs: {}\n", text);  // in a file, one line for each phase
  });
  line.Clear();
  if (!result.ok()) return Fail(result.error());
  if (result->phase().starts_with("failed"))
    return Fail(MakeError(ErrorCode::kFailed, "collection " + result->phase()));
  Print(json ? GcJson(*result) : GcText(*result));
  return daemon::kExitDone;
}

int RunCheck(const CheckCommand& command) {
  auto location = Locate(command.target);
  if (!location.ok() && command.target.path.empty()) {
    location = Locate({{}, command.target.data.empty() ? daemon::kDefaultData : command.target.data});
  }
  if (!location.ok()) return Fail(location.error());
  ProgressLine line(!command.json);
  if (!command.rebuild_index) {
    auto report = CheckBesideDaemon(*location, ShowsCheck(line));
    line.Clear();
    if (!report.ok()) return Fail(report.error());
    if (*report) return PrintCheck(**report, std::nullopt, command.json);
  }
  // Nobody serves the directory: then it can be opened here. If somebody does after all, its lock says so.
  daemon::OfflineCheckOptions options;
  options.config.data = location->data;
  options.rebuild_index = command.rebuild_index;
  options.on_progress = [show = ShowsCheck(line)](const fs::CheckProgress& at) {
    control::CheckProgress progress;
    control::ToMessage(at, progress);
    show(progress);
  };
  auto result = daemon::CheckOffline(options);
  line.Clear();
  if (!result.ok()) return Fail(result.error());
  if (result->chunks_found && !command.json) {
    fmt::print(stderr, "cairnfs: index rebuilt: {} chunks found\n", *result->chunks_found);
  }
  control::CheckReply reply;
  control::ToMessage(result->report, reply);
  return PrintCheck(reply, result->last_end, command.json);
}

}  // namespace cairnfs::tools
