// `cairnfs watch`.
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "checkpoint_commands.h"
#include "commands.h"
#include "commit_text.h"
#include "commit_watch.h"
#include "daemon/exit_codes.h"
#include "exec_line.h"
#include "keep_commands.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::milliseconds kLookForCommitsEvery{500};
// Commits that wait until those before them were told: past that the directory is not looked at.
constexpr size_t kWaitingMax = 65536;

// A command of ExecCommand that runs by the shell, with the path as its parameter.
class Execution {
 public:
  Execution(const std::string& command, const std::string& path) : path_(path) {
    child_ = fork();
    if (child_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), "sh", path.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    if (child_ > 0) descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, child_, 0));
  }
  ~Execution() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Execution(const Execution&) = delete;

  const std::string& path() const { return path_; }
  // Its exit status, or 128 and a signal. nullopt: it goes on after this time.
  std::optional<int> Await(std::chrono::milliseconds time) const {
    constexpr int kNotStarted = 126;
    if (child_ < 0) return kNotStarted;
    pollfd end{.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (descriptor_ >= 0 && poll(&end, 1, static_cast<int>(time.count())) <= 0) return std::nullopt;
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  const std::string path_;
  pid_t child_ = -1;
  int descriptor_ = -1;  // of the process; -1: none could be had, and Await waits until it has ended
};

// Tells commits, and runs the command of each before the next one is told.
class Telling {
 public:
  // `exec`: of ExecCommand; empty: none.
  Telling(const WatchCommand& command, std::string exec, uint64_t hold_ms)
      : command_(command), exec_(std::move(exec)), hold_ms_(hold_ms) {}

  bool has_room() const { return waiting_.size() < kWaitingMax; }
  void Add(Checkpoint checkpoint) { waiting_.push_back(std::move(checkpoint)); }
  // Tells what can be told within this time, of which it may take less. Whether that was all that --count asks for.
  bool Go(std::chrono::milliseconds time) {
    while (!HasOutputFailed() && (execution_ != nullptr || !waiting_.empty())) {
      if (execution_ == nullptr) Begin();
      if (execution_ != nullptr && !AwaitEnd(time)) return false;
      if (++told_ >= command_.count && command_.count > 0 && !IsRevisionLeft()) return true;
      time = std::chrono::milliseconds(0);
    }
    Clock::SleepFor(time);
    return false;
  }

 private:
  void Begin() {
    const Checkpoint checkpoint = std::move(waiting_.front());
    waiting_.pop_front();
    revision_ = checkpoint.revision();
    if (command_.json) {
      const nlohmann::ordered_json json = CheckpointJson(checkpoint);
      Print(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    } else {
      Print(fmt::format("{} {}\n", checkpoint.revision(), Printable(checkpoint.path)));
    }
    if (exec_.empty() || HasOutputFailed()) return;
    // It may have waited long. That it is gone the command finds.
    if (hold_ms_ > 0) static_cast<void>(HoldFor(checkpoint.path, hold_ms_).ok());
    execution_ = std::make_unique<Execution>(exec_, checkpoint.path);
  }
  // Of an exchange the other one: --since, after this revision, would not tell it.
  bool IsRevisionLeft() const { return !waiting_.empty() && waiting_.front().revision() == revision_; }
  bool AwaitEnd(std::chrono::milliseconds time) {
    const auto status = execution_->Await(time);
    if (!status) return false;
    if (*status != 0) {
      fmt::print(stderr, "cairnfs: the command for {} ended with {}\n", Printable(execution_->path()), *status);
    }
    execution_.reset();
    return true;
  }

  const WatchCommand& command_;
  const std::string exec_;
  const uint64_t hold_ms_;
  std::deque<Checkpoint> waiting_;
  std::unique_ptr<Execution> execution_;
  uint64_t told_ = 0, revision_ = 0;  // how many, and that of the last one
};

CommitWatch::Hold HoldingFor(uint64_t milliseconds) {
  if (milliseconds == 0) return {};
  return [milliseconds](const Checkpoint& checkpoint) -> Status {
    const Status held = HoldFor(checkpoint.path, milliseconds);
    if (held.ok() || held.error().code != ErrorCode::kNotFound) return held;
    fmt::print(stderr, "cairnfs: {} cannot be held: {}\n", Printable(checkpoint.path), Printable(held.error().message));
    return {};
  };
}

}  // namespace

int RunWatch(const WatchCommand& command) {
  const auto pattern = StepPattern::Parse(command.match);
  if (!pattern.ok()) return Fail(pattern.error());
  const auto hold_ms = command.hold.empty() ? Result<uint64_t>(uint64_t{0}) : ParseHoldTime(command.hold);
  if (!hold_ms.ok()) return Fail(hold_ms.error());
  const auto exec = ExecCommand(command.exec);
  if (!exec.ok()) return Fail(exec.error());
  KnownCommits known;
  const auto list = [&, directory = Absolute(command.directory)] { return ListRun(directory, *pattern, &known); };
  CommitWatch watch(list, command.since, HoldingFor(*hold_ms));
  Telling telling(command, *exec, *hold_ms);
  auto look_at = Clock::Now();
  bool is_away = false;
  for (bool is_first = true;; is_first = false) {
    const auto now = Clock::Now();
    if (now >= look_at && telling.has_room()) {
      look_at = now + kLookForCommitsEvery;
      auto fresh = watch.Look();
      const bool is_refused = !fresh.ok() && *hold_ms > 0 && fresh.error().code == ErrorCode::kPermission;
      if (is_refused || (!fresh.ok() && is_first)) return Fail(fresh.error());
      // A daemon that is started again, or hosts that do not answer: what came meanwhile is told then.
      if (!fresh.ok() && !std::exchange(is_away, true)) {
        fmt::print(stderr, "cairnfs: {}; waiting until it is there again\n", fresh.error().message);
      }
      if (fresh.ok()) is_away = false;
      for (Checkpoint& checkpoint : fresh.ok() ? *fresh : std::vector<Checkpoint>()) telling.Add(std::move(checkpoint));
    }
    if (telling.Go(kLookForCommitsEvery)) return daemon::kExitDone;
    if (HasOutputFailed()) return daemon::kExitFailed;
  }
}

}  // namespace cairnfs::tools
