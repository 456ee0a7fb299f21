// Temporary directories that a save has left which was never committed: which of them go, by the rules `abandoned` of a
// policy. Functions of what they are told; they read nothing.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "retention/glob.h"
#include "retention/judge.h"
#include "retention/policy.h"
#include "retention/step_pattern.h"

namespace cairnfs::retention {

// A directory right in that of a run.
struct Temporary : Protection {
  std::string name;
  bool committed = false;
  Timestamp written = {};  // when something below it was written, made or changed last
};

// Any thread, also at once.
class AbandonedRules {
 public:
  // kInvalidArgument: the policy is wrong.
  static Result<AbandonedRules> Of(const Policy& policy);

  bool empty() const { return rules_.empty(); }
  // For how long nothing is to have been written below a directory of this name; of several rules the longest. nullopt:
  // none is about it; or a `match` of the policy takes it for a checkpoint, which other rules are about.
  std::optional<std::chrono::seconds> TimeFor(std::string_view name) const;
  // It goes if it was not committed, nothing was written below it for that long, and it is not pinned, held or open.
  // REQUIRES: TimeFor(temporary.name).
  Verdict Judge(const Temporary& temporary, Timestamp now) const;

 private:
  AbandonedRules(std::vector<std::pair<Glob, std::chrono::seconds>> rules, std::optional<StepPattern> checkpoints)
      : rules_(std::move(rules)), checkpoints_(std::move(checkpoints)) {}

  std::vector<std::pair<Glob, std::chrono::seconds>> rules_;
  std::optional<StepPattern> checkpoints_;
};

}  // namespace cairnfs::retention
