#include "checkpoint_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "checkpoints.h"
#include "commands.h"
#include "commit_text.h"
#include "daemon/exit_codes.h"
#include "json_text.h"
#include "keep_commands.h"
#include "keeping.h"
#include "output.h"
#include "whole_checkpoint.h"

namespace cairnfs::tools {
namespace {

// What `pattern` finds, or that it is wrong.
Result<CheckpointList> ListMatching(const std::string& directory, const std::string& match) {
  CAIRNFS_ASSIGN_OR_RETURN(const StepPattern pattern, StepPattern::Parse(match));
  return ListRun(Absolute(directory), pattern);
}

void TellSkipped(const std::string& sentence) { fmt::print(stderr, "cairnfs: skipped: {}\n", Printable(sentence)); }

// Whether retention has to leave it.
std::string KeptText(const Checkpoint& checkpoint) {
  const retention::Protection keeping = ReadProtection(checkpoint.path);
  if (keeping.sealed) return "sealed";
  if (keeping.pinned) return "pinned";
  return keeping.held_until && *keeping.held_until > Clock::WallTime() ? "held" : "-";
}

constexpr const char* kRow = "{:<24} {:<12} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9}  {:<6} {:<16} {}\n";

std::string RowOf(const Checkpoint& checkpoint) {
  const nlohmann::ordered_json commit = checkpoint.commit.value_or(nlohmann::ordered_json::object());
  return fmt::format(kRow, WhenText(checkpoint.time), checkpoint.step ? std::to_string(*checkpoint.step) : "-",
                     CountText(commit, "files"), BytesText(commit, "bytes"), BytesText(commit, "new_bytes"),
                     SecondsText(commit, "save_seconds"), SecondsText(commit, "write_seconds"),
                     SecondsText(commit, "wait_seconds"), KeptText(checkpoint),
                     checkpoint.commit ? Printable(CommitterText(commit)) : "not committed",
                     Printable(checkpoint.name));
}

// The newest first: by step, then by time.
bool IsNewer(const Checkpoint& left, const Checkpoint& right) {
  return std::pair(left.step, left.time) > std::pair(right.step, right.time);
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

// Why a script could not open what would be printed; nullopt: it can.
enum class PrintedAs { kLine, kJson };
std::optional<std::string> WhyNotPrinted(const Checkpoint& checkpoint, PrintedAs form) {
  const std::string& name = checkpoint.name;
  if (form == PrintedAs::kLine && name.find('\n') != std::string::npos)
    return "its name has a newline, and is no line (--json tells it)";
  if (form == PrintedAs::kJson && nlohmann::json::parse(JsonText(name)) != name) {
    return "its name is no UTF-8, and JSON cannot tell it (without --json it is printed)";
  }
  return std::nullopt;
}

// `others`: those that come after it.
void TellTie(const Checkpoint& checkpoint, std::span<const Checkpoint> others) {
  std::string older;
  size_t count = 0;
  for (; count < others.size() && others[count].step == checkpoint.step; ++count) {
    older += (count > 0 ? ", " : "") + others[count].path;
  }
  if (count == 0) return;
  fmt::print(stderr, "cairnfs: step {} is there {}; {} {} older than {}\n", *checkpoint.step,
             count == 1 ? "twice" : fmt::format("{} times", count + 1), Printable(older), count == 1 ? "is" : "are",
             Printable(checkpoint.path));
}

}  // namespace

int RunLs(const LsCommand& command) {
  auto list = ListMatching(command.directory, command.match);
  if (!list.ok()) return Fail(list.error());
  for (const std::string& sentence : list->skipped) TellSkipped(sentence);
  for (const std::string& sentence : list->in_removal) TellSkipped(sentence);
  if (command.json) {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Checkpoint& checkpoint : list->checkpoints) json.push_back(CheckpointJson(checkpoint));
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
  for (const std::string& sentence : list->in_removal) TellSkipped(sentence);
  std::vector<Checkpoint>& checkpoints = list->checkpoints;
  std::erase_if(checkpoints, [&](const Checkpoint& one) { return command.before && one.step >= command.before; });
  std::sort(checkpoints.begin(), checkpoints.end(), IsNewer);
  SkipUncommitted(command, checkpoints);
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    const Checkpoint& checkpoint = checkpoints[i];
    auto why = WhyNotPrinted(checkpoint, command.json ? PrintedAs::kJson : PrintedAs::kLine);
    if (!why) why = WhyNotWhole(checkpoint.path, command.verify ? Depth::kAllBytes : Depth::kFormats);
    if (why) {
      TellSkipped(fmt::format("{}: {}", checkpoint.path, *why));
      continue;
    }
    const Status held = *hold_ms == 0 ? Status() : HoldFor(checkpoint.path, *hold_ms);
    const bool is_gone = !held.ok() && held.error().code == ErrorCode::kNotFound;
    if (is_gone) TellSkipped(held.error().message);
    if (is_gone) continue;
    if (!held.ok()) return Fail(held.error().WithContext("it cannot be held"));
    TellTie(checkpoint, std::span(checkpoints).subspan(i + 1));
    Print(command.json ? JsonText(CheckpointJson(checkpoint)) : checkpoint.path + "\n");
    return daemon::kExitDone;
  }
  fmt::print(stderr, "cairnfs: no whole checkpoint in {}\n", command.directory);
  return CAIRNFS_EXIT_NONE;
}

}  // namespace cairnfs::tools
