#include "checkpoint_commands.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "base/user.h"
#include "base/utc_text.h"
#include "checkpoints.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "keep_commands.h"
#include "keeping.h"
#include "output.h"
#include "whole_checkpoint.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::milliseconds kLookForCommitsEvery{500};
constexpr std::string_view kPlaceOfPath = "{}";

// What `pattern` finds, or that it is wrong.
Result<CheckpointList> ListMatching(const std::string& directory, const std::string& match) {
  CAIRNFS_ASSIGN_OR_RETURN(const StepPattern pattern, StepPattern::Parse(match));
  return ListCheckpoints(Absolute(directory), pattern);
}

void TellSkipped(const std::string& sentence) { fmt::print(stderr, "cairnfs: skipped: {}\n", Printable(sentence)); }

std::string WhenText(double seconds) {
  const double whole = std::floor(seconds);
  return UtcText(
      {.seconds = static_cast<int64_t>(whole), .nanoseconds = static_cast<uint32_t>((seconds - whole) * 1e9)});
}

nlohmann::ordered_json JsonOf(const Checkpoint& checkpoint) {
  nlohmann::ordered_json json;
  json["path"] = checkpoint.path;
  if (checkpoint.step) json["step"] = *checkpoint.step;
  json["time"] = checkpoint.time;
  json["committed"] = checkpoint.commit.has_value();
  json.update(ProtectionJson(ReadProtection(checkpoint.path)));
  if (checkpoint.commit) json.update(*checkpoint.commit);
  return json;
}

// Of a number that may not be known yet.
std::string BytesText(const nlohmann::ordered_json& commit, const char* key) {
  const auto found = commit.find(key);
  const bool is_known = found != commit.end() && found->is_number_unsigned();
  return is_known ? daemon::FormatSize(found->get<uint64_t>()) : "-";
}

std::string SecondsText(const nlohmann::ordered_json& commit, const char* key) {
  const auto found = commit.find(key);
  const bool is_known = found != commit.end() && found->is_number();
  return is_known ? fmt::format("{:.1f} s", found->get<double>()) : "-";
}

// Whether retention has to leave it.
std::string KeptText(const Checkpoint& checkpoint) {
  const retention::Protection keeping = ReadProtection(checkpoint.path);
  if (keeping.pinned) return "pinned";
  return keeping.held_until && *keeping.held_until > Clock::WallTime() ? "held" : "-";
}

constexpr const char* kRow = "{:<24} {:<12} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9}  {:<6} {:<16} {}\n";

std::string RowOf(const Checkpoint& checkpoint) {
  const nlohmann::ordered_json commit = checkpoint.commit.value_or(nlohmann::ordered_json::object());
  const auto files = commit.find("files");
  const std::string by = checkpoint.commit
                             ? fmt::format("{} {}", UserName(commit.value("uid", 0U)), commit.value("command", ""))
                             : "not committed";
  return fmt::format(kRow, WhenText(checkpoint.time), checkpoint.step ? std::to_string(*checkpoint.step) : "-",
                     files != commit.end() && files->is_number() ? std::to_string(files->get<uint64_t>()) : "-",
                     BytesText(commit, "bytes"), BytesText(commit, "new_bytes"), SecondsText(commit, "save_seconds"),
                     SecondsText(commit, "write_seconds"), SecondsText(commit, "wait_seconds"), KeptText(checkpoint),
                     Printable(commit.value("host", "") + (commit.contains("host") ? " " : "") + by),
                     Printable(checkpoint.name));
}

// The newest first: by step, then by time.
bool IsNewer(const Checkpoint& left, const Checkpoint& right) {
  return std::pair(left.step, left.time) > std::pair(right.step, right.time);
}

// Runs `line` by the shell with each {} replaced by the path, quoted. Its exit status, or 128 and a signal.
int Execute(const std::string& line, const std::string& path) {
  std::string quoted = "'";
  for (const char letter : path) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  quoted += "'";
  std::string command = line;
  for (size_t at = command.find(kPlaceOfPath); at != std::string::npos;
       at = command.find(kPlaceOfPath, at + quoted.size())) {
    command.replace(at, kPlaceOfPath.size(), quoted);
  }
  constexpr int kNotStarted = 126;
  const pid_t child = fork();
  if (child < 0) return kNotStarted;
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Commits as they come, each once, in their order.
class CommitWatch {
 public:
  CommitWatch(const WatchCommand& command, const StepPattern& pattern)
      : pattern_(pattern), directory_(Absolute(command.directory)), since_(command.since) {}

  // What was committed since the last look. Where no --since was given the first look tells nothing.
  Result<std::vector<Checkpoint>> Look() {
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<Checkpoint> fresh, FindFresh());
    // A listing is not of one moment: an older one may have come behind its back.
    if (!fresh.empty()) {
      CAIRNFS_ASSIGN_OR_RETURN(fresh, FindFresh());
    }
    for (const Checkpoint& checkpoint : fresh) told_.insert(checkpoint.revision());
    if (std::exchange(is_first_, false) && !since_) return std::vector<Checkpoint>();
    return fresh;
  }

 private:
  Result<std::vector<Checkpoint>> FindFresh() {
    CAIRNFS_ASSIGN_OR_RETURN(CheckpointList list, ListCheckpoints(directory_, pattern_, &known_));
    std::vector<Checkpoint> fresh;
    for (Checkpoint& checkpoint : list.checkpoints) {
      const uint64_t revision = checkpoint.revision();
      if (revision > since_.value_or(0) && !told_.contains(revision)) fresh.push_back(std::move(checkpoint));
    }
    std::sort(fresh.begin(), fresh.end(),
              [](const Checkpoint& left, const Checkpoint& right) { return left.revision() < right.revision(); });
    return fresh;
  }

  const StepPattern& pattern_;
  const std::string directory_;
  const std::optional<uint64_t> since_;
  bool is_first_ = true;
  KnownCommits known_;
  std::set<uint64_t> told_;  // revisions
};

void Tell(const WatchCommand& command, const Checkpoint& checkpoint) {
  if (command.json) {
    Print(JsonOf(checkpoint).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    Print(fmt::format("{} {}\n", checkpoint.revision(), Printable(checkpoint.path)));
  }
  if (command.exec.empty()) return;
  const int status = Execute(command.exec, checkpoint.path);
  if (status != 0)
    fmt::print(stderr, "cairnfs: the command for {} ended with {}\n", Printable(checkpoint.path), status);
}

// Nobody has said which names are checkpoints: where some were committed, one that was not is being written, or was
// given up.
void SkipUncommitted(const LatestCommand& command, std::vector<Checkpoint>& checkpoints) {
  const auto is_committed = [](const Checkpoint& checkpoint) { return checkpoint.commit.has_value(); };
  if (!command.match.empty() || std::none_of(checkpoints.begin(), checkpoints.end(), is_committed)) return;
  std::erase_if(checkpoints, [&](const Checkpoint& checkpoint) {
    if (!is_committed(checkpoint)) TellSkipped(checkpoint.path + " is not committed (--match takes it all the same)");
    return !is_committed(checkpoint);
  });
}

}  // namespace

int RunLs(const LsCommand& command) {
  auto list = ListMatching(command.directory, command.match);
  if (!list.ok()) return Fail(list.error());
  for (const std::string& sentence : list->skipped) TellSkipped(sentence);
  if (command.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Checkpoint& checkpoint : list->checkpoints) json.push_back(JsonOf(checkpoint));
    Print(JsonText(json));
    return daemon::kExitDone;
  }
  std::sort(list->checkpoints.begin(), list->checkpoints.end(),
            [](const Checkpoint& left, const Checkpoint& right) { return IsNewer(right, left); });
  std::string text =
      fmt::format(kRow, "TIME", "STEP", "FILES", "BYTES", "NEW", "SAVE", "WRITE", "WAIT", "KEPT", "BY", "NAME");
  for (const Checkpoint& checkpoint : list->checkpoints) text += RowOf(checkpoint);
  Print(text);
  return daemon::kExitDone;
}

int RunLatest(const LatestCommand& command) {
  const auto hold_ms = command.hold.empty() ? Result<uint64_t>(uint64_t{0}) : ParseHoldTime(command.hold);
  if (!hold_ms.ok()) return Fail(hold_ms.error());
  auto list = ListMatching(command.directory, command.match);
  if (!list.ok()) return Fail(list.error());
  for (const std::string& sentence : list->skipped) TellSkipped(sentence);
  std::vector<Checkpoint>& checkpoints = list->checkpoints;
  std::erase_if(checkpoints, [&](const Checkpoint& one) { return command.before && one.step >= command.before; });
  std::sort(checkpoints.begin(), checkpoints.end(), IsNewer);
  SkipUncommitted(command, checkpoints);
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const Checkpoint& checkpoint = checkpoints[i];
    if (const auto why = WhyNotWhole(checkpoint.path, command.verify ? Depth::kAllBytes : Depth::kFormats)) {
      TellSkipped(fmt::format("{}: {}", checkpoint.path, *why));
      continue;
    }
    const Status held = *hold_ms == 0 ? Status() : HoldFor(checkpoint.path, *hold_ms);
    const bool is_gone = !held.ok() && held.error().code == ErrorCode::kNotFound;
    if (is_gone) TellSkipped(held.error().message);
    if (is_gone) continue;
    if (!held.ok()) return Fail(held.error().WithContext("it cannot be held"));
    if (i + 1 < checkpoints.size() && checkpoints[i + 1].step == checkpoint.step) {
      fmt::print(stderr, "cairnfs: step {} is there twice; {} is older than {}\n", *checkpoint.step,
                 Printable(checkpoints[i + 1].path), Printable(checkpoint.path));
    }
    Print(command.json ? JsonText(JsonOf(checkpoint)) : checkpoint.path + "\n");
    return daemon::kExitDone;
  }
  fmt::print(stderr, "cairnfs: no whole checkpoint in {}\n", command.directory);
  return CAIRNFS_EXIT_NONE;
}

int RunWatch(const WatchCommand& command) {
  const auto pattern = StepPattern::Parse(command.match);
  if (!pattern.ok()) return Fail(pattern.error());
  CommitWatch watch(command, *pattern);
  uint64_t count = 0;
  bool is_away = false;
  for (bool is_first = true;; is_first = false) {
    const auto fresh = watch.Look();
    if (!fresh.ok() && is_first) return Fail(fresh.error());
    // A daemon that is started again, or hosts that do not answer: what came meanwhile is told then.
    if (!fresh.ok() && !std::exchange(is_away, true)) {
      fmt::print(stderr, "cairnfs: {}; waiting until it is there again\n", fresh.error().message);
    }
    if (fresh.ok()) is_away = false;
    for (const Checkpoint& checkpoint : fresh.ok() ? *fresh : std::vector<Checkpoint>()) {
      Tell(command, checkpoint);
      if (++count == command.count) return daemon::kExitDone;
    }
    Clock::SleepFor(kLookForCommitsEvery);
  }
}

}  // namespace cairnfs::tools
