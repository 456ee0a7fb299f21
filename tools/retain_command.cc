#include "retain_command.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "base/utc_text.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "output.h"
#include "removal.h"
#include "retaining.h"
#include "retention/policy.h"
#include "run_directory.h"
#include "temporaries.h"

namespace cairnfs::tools {
namespace {

using nlohmann::ordered_json;
using retention::Policy;

bool HasOptions(const RetainCommand& command) {
  return !command.keep_last.empty() || !command.keep_every.empty() || !command.keep_for.empty() ||
         !command.match.empty() || !command.metrics_file.empty() || !command.keep_best.empty() ||
         !command.keep_inside.empty() || !command.abandoned.empty() || command.keep_without_metric;
}

Result<Policy> PolicyOf(const RetainCommand& command) {
  Policy policy;
  if (!command.keep_last.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(policy.keep_last, retention::ParseCount("--keep-last", command.keep_last));
  }
  if (!command.keep_every.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(policy.keep_every, retention::ParseCount("--keep-every", command.keep_every));
  }
  for (const std::string& text : command.keep_best) {
    CAIRNFS_ASSIGN_OR_RETURN(retention::BestRule rule, retention::ParseBestRule(text));
    policy.keep_best.push_back(std::move(rule));
  }
  if (!command.keep_for.empty()) {
    auto milliseconds = daemon::ParseDurationMs(command.keep_for);
    if (!milliseconds.ok()) return milliseconds.error().WithContext("--keep-for");
    policy.keep_for = std::chrono::seconds(*milliseconds / 1000);
  }
  policy.keep_without_metric = command.keep_without_metric;
  policy.match = command.match;
  policy.keep_inside = command.keep_inside;
  for (const std::string& text : command.abandoned) {
    CAIRNFS_ASSIGN_OR_RETURN(retention::AbandonedRule rule, ParseAbandoned(text));
    policy.abandoned.push_back(std::move(rule));
  }
  if (!command.metrics_file.empty()) policy.metrics_file = command.metrics_file;
  CAIRNFS_RETURN_IF_ERROR(retention::CheckPolicy(policy));
  // JSON has no text but UTF-8.
  const auto kept = retention::ParsePolicy(retention::PolicyText(policy));
  if (!kept.ok()) return kept.error();
  if (*kept != policy) return InvalidArgument("the texts of a policy are to be UTF-8");
  return policy;
}

// The words that set it.
std::string WordsOf(const Policy& policy) {
  std::string words;
  if (policy.keep_last) words += fmt::format(" --keep-last {}", *policy.keep_last);
  if (policy.keep_every) words += fmt::format(" --keep-every {}", *policy.keep_every);
  for (const retention::BestRule& rule : policy.keep_best) {
    words += fmt::format(" --keep-best '{}:{}:{}'", rule.metric, rule.better == retention::Better::kMin ? "min" : "max",
                         rule.count);
  }
  if (policy.keep_for) words += fmt::format(" --keep-for {}s", policy.keep_for->count());
  if (policy.keep_without_metric) words += " --keep-without-metric";
  if (!policy.match.empty()) words += fmt::format(" --match '{}'", policy.match);
  if (policy.metrics_file != Policy().metrics_file) words += fmt::format(" --metrics-file '{}'", policy.metrics_file);
  for (const std::string& pattern : policy.keep_inside) words += fmt::format(" --keep-inside '{}'", pattern);
  for (const retention::AbandonedRule& rule : policy.abandoned) {
    words += fmt::format(" --abandoned '{}:{}s'", rule.pattern, rule.unwritten_for.count());
  }
  return words.substr(1);
}

ordered_json JsonOf(const RunDirectory& run, const Policy& policy, const Fates& report) {
  ordered_json json;
  json["path"] = run.path();
  json["policy"] = ordered_json::parse(retention::PolicyText(policy));
  json["checkpoints"] = ordered_json::array();
  for (const Fate& line : report.lines) {
    ordered_json one;
    one["path"] = run.path() + "/" + line.name;
    one["step"] = line.step ? ordered_json(*line.step) : nullptr;
    one["goes"] = line.goes;
    one["removed"] = line.removed;
    one["kept_inside"] = line.kept_inside;
    one["temporary"] = line.unwritten_for.has_value();
    one["reason"] = line.reason;
    json["checkpoints"].push_back(std::move(one));
  }
  json["notes"] = report.notes;
  return json;
}

int TellFates(const RetainCommand& command, const RunDirectory& run, const Policy& policy, const Fates& report) {
  if (command.json) {
    Print(JsonText(JsonOf(run, policy, report)));
    return daemon::kExitDone;
  }
  for (const std::string& note : report.notes) fmt::print(stderr, "cairnfs: {}\n", Printable(note));
  if (report.lines.empty()) {
    const std::string matches = policy.match.empty() ? "has a number in its name" : "matches " + policy.match;
    fmt::print(stderr, "cairnfs: no directory in {} {}\n", Printable(run.path()), Printable(matches));
  }
  std::string text;
  for (const Fate& line : report.lines) {
    const char* fate = line.removed ? "removed" : line.goes ? "goes" : "stays";
    text += fmt::format("{:<8} {:<24} {}\n", fate, Printable(line.name), Printable(line.reason));
  }
  Print(text);
  return daemon::kExitDone;
}

int Apply(const RetainCommand& command, const RunDirectory& run, const Policy& policy, std::optional<uid_t> only_of) {
  std::vector<std::string> taken_up;
  Status removed = command.now ? TakeUpLeft(LeftIn(run.owner()), taken_up) : Status();
  auto report = JudgeAll(policy, only_of);
  if (!report.ok()) return Fail(report.error());
  report->notes.insert(report->notes.begin(), taken_up.begin(), taken_up.end());
  const Status all_removed =
      command.now ? RemoveAll(policy, *report, {.judge = [&] { return JudgeAll(policy, only_of); }}) : Status();
  if (removed.ok()) removed = all_removed;
  const int told = TellFates(command, run, policy, *report);
  return removed.ok() ? told : Fail(removed.error());
}

// As people read it, with an end of line; empty: it was never applied by itself, or that is not told.
std::string WordsOfLastTime(const std::optional<std::string>& text) {
  const auto last = text ? ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false) : ordered_json();
  if (!last.is_object() || !last.contains("at")) return {};
  std::string words = "applied " + UtcText({.seconds = last.value("at", int64_t{0}), .nanoseconds = 0});
  if (const std::string host = last.value("host", ""); !host.empty()) words += " by " + Printable(host);
  words += fmt::format(": {} removed, {} could not be, {} stay\n", last.value("removed_count", 0U),
                       last.value("failed_count", 0U), last.value("stay_count", 0U));
  for (const auto& [key, what] : {std::pair("removed", "removed"), std::pair("failed", "not removed")}) {
    for (const auto& one : last.value(key, ordered_json::array())) {
      if (!one.is_object()) continue;
      words += fmt::format("{} {}: {}\n", what, Printable(one.value("name", "")), Printable(one.value("reason", "")));
    }
  }
  for (const auto& note : last.value("notes", ordered_json::array())) {
    if (note.is_string()) words += Printable(note.get<std::string>()) + "\n";
  }
  const auto error = last.find("error");
  if (error != last.end() && error->is_string()) words += Printable(error->get<std::string>()) + "\n";
  return words;
}

int TellPolicy(const RetainCommand& command, const RunDirectory& run, const std::optional<Policy>& policy) {
  if (command.json) {
    ordered_json json;
    json["path"] = run.path();
    json["policy"] = policy ? ordered_json::parse(retention::PolicyText(*policy)) : nullptr;
    const auto last = run.ReadLastTime();
    if (command.show) json["applied"] = last ? ordered_json::parse(*last, nullptr, false) : nullptr;
    Print(JsonText(json));
  } else {
    Print(fmt::format("{}: {}\n", Printable(run.path()), policy ? Printable(WordsOf(*policy)) : "no policy"));
    if (command.show) Print(WordsOfLastTime(run.ReadLastTime()));
  }
  return daemon::kExitDone;
}

int SetOrTake(const RetainCommand& command, const RunDirectory& run) {
  if (!command.off) {
    const auto policy = PolicyOf(command);
    if (!policy.ok()) return Fail(policy.error());
    if (const Status set = run.SetPolicy(&*policy); !set.ok()) return Fail(set.error());
    return TellPolicy(command, run, *policy);
  }
  if (const Status taken = run.SetPolicy(nullptr); !taken.ok()) return Fail(taken.error());
  return TellPolicy(command, run, std::nullopt);
}

}  // namespace

int RunRetain(const RetainCommand& command) {
  const bool has_options = HasOptions(command);
  if (has_options && (command.show || command.off)) {
    return Fail(InvalidArgument("--show and --off go with no other options of a policy"));
  }
  const auto run = RunDirectory::Enter(command.directory);
  if (!run.ok()) return Fail(run.error());
  if (!command.show && !command.dry_run && !command.now) return SetOrTake(command, *run);
  if (has_options) {
    const auto policy = PolicyOf(command);
    return policy.ok() ? Apply(command, *run, *policy, std::nullopt) : Fail(policy.error());
  }
  const auto policy = run->ReadPolicy();
  if (!policy.ok()) return Fail(policy.error());
  if (!*policy) {
    fmt::print(stderr, "cairnfs: {} has no policy; cairnfs retain DIR --keep-last N sets one\n",
               Printable(run->path()));
    return CAIRNFS_EXIT_NONE;
  }
  return command.show ? TellPolicy(command, *run, *policy) : Apply(command, *run, **policy, run->OnlyOf());
}

}  // namespace cairnfs::tools
