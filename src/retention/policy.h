// A policy: which checkpoints of a run stay (docs/commits.md, "What stays").
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::retention {

inline constexpr size_t kPolicyBytesMax = 16 * 1024;  // of its JSON
inline constexpr size_t kBestRulesMax = 16;
inline constexpr uint64_t kCountMax = INT64_MAX;

enum class Better { kMin, kMax };

struct BestRule {
  std::string metric;
  Better better = Better::kMin;
  uint64_t count = 0;
  bool operator==(const BestRule&) const = default;
};

// Which temporary directories go (abandoned.h).
struct AbandonedRule {
  std::string pattern;  // of Glob
  std::chrono::seconds unwritten_for{0};
  bool operator==(const AbandonedRule&) const = default;
};

// What one rule keeps stays. nullopt: there is no such rule.
struct Policy {
  std::optional<uint64_t> keep_last = {};   // so many of the newest
  std::optional<uint64_t> keep_every = {};  // those whose step it divides
  std::vector<BestRule> keep_best = {};
  std::optional<std::chrono::seconds> keep_for = {};  // after the commit
  bool keep_without_metric = false;                   // with keep_best: those that lack one of its metrics
  std::string match = {};                             // of StepPattern
  std::string metrics_file = "metrics.json";          // a name right below a checkpoint
  std::vector<std::string> keep_inside = {};          // of Glob: what stays right in those that go
  std::vector<AbandonedRule> abandoned = {};
  bool operator==(const Policy&) const = default;

  bool HasRules() const { return keep_last || keep_every || !keep_best.empty() || keep_for; }
};

// kInvalidArgument says what is wrong and what would be right: of a count or time that is 0 or too large, a pattern, no
// rule at all.
Status CheckPolicy(const Policy& policy);
Status CheckAbandoned(const std::vector<AbandonedRule>& rules);

// The value of the attribute user.cairnfs.retain: JSON, with the keys that docs/commits.md has. Parsing checks the
// policy too. An unknown key is refused: what a newer version keeps by it would go.
std::string PolicyText(const Policy& policy);
Result<Policy> ParsePolicy(std::string_view text);

// What people write on the command line. `what` names it in messages. kInvalidArgument.
Result<uint64_t> ParseCount(std::string_view what, std::string_view text);
Result<BestRule> ParseBestRule(std::string_view text);  // METRIC:min:N or METRIC:max:N; the metric may have colons
std::string BestRuleText(const BestRule& rule);         // "the 2 with the lowest val_loss"

}  // namespace cairnfs::retention
