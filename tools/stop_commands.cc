#include "stop_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "daemon/data_directory.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "daemon/stop_deadline.h"
#include "fuse/server.h"
#include "json_text.h"
#include "output.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::milliseconds kLookAtStopEvery{100};
// For the process to go after the time is up: its threads may wait for the disk yet.
constexpr std::chrono::seconds kEndGrace{5};
constexpr std::string_view kFailedState = "failed: ";

double InSeconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

struct StopResult {
  std::chrono::milliseconds deadline;
  control::StopEstimate estimate = {};
  std::optional<control::Unsaved> unsaved = {};  // nullopt: all is durable
};

int TellOutcome(const StopResult& outcome, const std::string& what, bool json) {
  if (json) {
    nlohmann::ordered_json object = {{"durable", !outcome.unsaved},
                                     {"deadline_seconds", InSeconds(outcome.deadline)},
                                     {"estimate", FieldsOf(outcome.estimate)}};
    if (outcome.unsaved) object["unsaved"] = FieldsOf(*outcome.unsaved);
    Print(JsonText(object));
  }
  if (!outcome.unsaved) return daemon::kExitDone;
  const control::Unsaved& unsaved = *outcome.unsaved;
  fmt::print(stderr, "cairnfs: {}not everything became durable: {}\n", what, Printable(unsaved.reason()));
  if (json) return daemon::kExitLost;
  std::string text;
  for (const control::UnsavedFile& file : unsaved.files()) {
    text += fmt::format("not durable: {} ({})\n", Printable(file.path()), daemon::FormatSize(file.bytes()));
  }
  const auto listed = static_cast<uint64_t>(unsaved.files_size());
  if (unsaved.file_count() > listed) text += fmt::format("... and {} more files\n", unsaved.file_count() - listed);
  if (unsaved.names()) text += "not durable: changes of names or attributes\n";
  Print(text);
  return daemon::kExitLost;
}

void TellEstimate(const control::StopEstimate& estimate, std::chrono::milliseconds deadline) {
  fmt::print(stderr, "cairnfs: {}; the time is {} s\n", daemon::DescribeEstimate(estimate), InSeconds(deadline));
}

// Follows the daemon to its end, and returns what was lost. `pid` 0: which daemon it is has not been told.
std::optional<control::Unsaved> FollowStop(control::Client& client, const std::string& data, uint64_t pid,
                                           Clock::time_point until) {
  std::optional<control::Unsaved> told;
  const bool is_caller = pid != 0;  // the daemon waits for its word
  bool says_so = false;
  while (daemon::IsInUse(data)) {
    const auto outcome = client.StopOutcome(std::exchange(says_so, false));
    if (outcome.ok() && pid == 0) pid = outcome->pid();
    if (outcome.ok() && outcome->pid() != pid) break;  // another has started since
    if (outcome.ok() && outcome->has_unsaved()) {
      says_so = is_caller && !told;
      told = outcome->unsaved();
    }
    if (Clock::Now() >= until) break;
    if (!outcome.ok() || told) Clock::SleepFor(kLookAtStopEvery);
  }
  if (told) return told;
  control::Unsaved unsaved;
  const auto left = daemon::ReadLastEnd(data);
  if (!left.ok()) {
    unsaved.set_reason(left.error().WithContext("it cannot be told what is").message);
  } else if (left->starts_with(kFailedState)) {
    unsaved.set_reason(left->substr(kFailedState.size()));
  } else if (!left->empty()) {
    unsaved.set_reason("the daemon (\"" + *left + "\") has not said so; its log may tell why");
  } else {
    return std::nullopt;
  }
  return unsaved;
}

}  // namespace

Result<std::chrono::milliseconds> ParseDeadline(const std::string& text) {
  constexpr uint64_t kMinMs = 1000, kMaxMs = 24 * 3'600'000;
  const auto parsed = daemon::ParseDurationMs(text);
  if (!parsed.ok()) return parsed.error().WithContext("--deadline");
  if (*parsed < kMinMs || *parsed > kMaxMs) {
    return InvalidArgument(fmt::format("--deadline must lie between 1s and 24h, not {}", text));
  }
  return std::chrono::milliseconds(*parsed);
}

int UmountWithin(const UmountCommand& command, const MountEntry& mount, std::chrono::milliseconds deadline) {
  const auto until = Clock::Now() + deadline + kEndGrace;
  auto client = Connect({mount.source, mount.mount_point});
  if (!client.ok()) return Fail(client.error());
  StopResult outcome{deadline};
  const auto estimate = client->Stop(deadline);
  if (estimate.ok()) {
    outcome.estimate = *estimate;
    if (!command.json) TellEstimate(*estimate, deadline);
  } else if (estimate.error().code != ErrorCode::kUnavailable) {  // else it may have begun, or another stop has
    return Fail(estimate.error().WithContext("cannot unmount " + mount.mount_point));
  }
  outcome.unsaved = FollowStop(*client, mount.source, outcome.estimate.pid(), until);
  const int exit_code = TellOutcome(outcome, "unmounted, but ", command.json);
  if (!command.unguard) return exit_code;
  const Status unguarded = fuse::Unguard(mount.mount_point);
  return unguarded.ok() || exit_code != daemon::kExitDone ? exit_code : Fail(unguarded.error());
}

int RunDrain(const DrainCommand& command) {
  const auto deadline = ParseDeadline(command.deadline);
  if (!deadline.ok()) return Fail(deadline.error());
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  StopResult outcome{*deadline};
  auto unsaved = located->client.Drain(*deadline, [&](const control::StopEstimate& estimate) {
    outcome.estimate = estimate;
    if (!command.json) TellEstimate(estimate, *deadline);
  });
  if (!unsaved.ok()) return Fail(unsaved.error());
  outcome.unsaved = *std::move(unsaved);
  return TellOutcome(outcome, "", command.json);
}

}  // namespace cairnfs::tools
