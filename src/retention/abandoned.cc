#include "retention/abandoned.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "base/utc_text.h"
#include "retention/values.h"

namespace cairnfs::retention {

Result<AbandonedRules> AbandonedRules::Of(const Policy& policy) {
  CAIRNFS_RETURN_IF_ERROR(CheckPolicy(policy));
  std::vector<std::pair<Glob, std::chrono::seconds>> rules;
  for (const AbandonedRule& rule : policy.abandoned) {
    CAIRNFS_ASSIGN_OR_RETURN(Glob glob, Glob::Parse(rule.pattern));
    rules.emplace_back(std::move(glob), rule.unwritten_for);
  }
  std::optional<StepPattern> checkpoints;
  if (!policy.match.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(StepPattern pattern, StepPattern::Parse(policy.match));
    checkpoints.emplace(std::move(pattern));
  }
  return AbandonedRules(std::move(rules), std::move(checkpoints));
}

std::optional<std::chrono::seconds> AbandonedRules::TimeFor(std::string_view name) const {
  if (IsGoingName(name)) return std::nullopt;
  if (checkpoints_) {
    const auto step = checkpoints_->StepOf(name);
    if (!step.ok() || *step) return std::nullopt;
  }
  std::optional<std::chrono::seconds> longest;
  for (const auto& [glob, time] : rules_) {
    if (glob.Matches(name)) longest = std::max(longest.value_or(time), time);
  }
  return longest;
}

Verdict AbandonedRules::Judge(const Temporary& temporary, Timestamp now) const {
  const auto time = TimeFor(temporary.name);
  assert(time);
  const auto stays = [](std::string why) { return Verdict{.goes = false, .reason = std::move(why)}; };
  if (temporary.committed) return stays("it was committed");
  const std::string written = UtcText(temporary.written);
  if (now < EndOfWait(temporary.written, *time)) {
    return stays(fmt::format("something was written below it at {} (abandoned)", written));
  }
  if (auto why = WhyItStays(temporary, now)) return stays(*std::move(why));
  return {.goes = true, .reason = fmt::format("nothing was written below it since {} (abandoned)", written)};
}

}  // namespace cairnfs::retention
