// What keeps a checkpoint from retention, and what retention goes by, as its attributes and files tell it
// (docs/commits.md, "What stays").
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "retention/judge.h"
#include "retention/policy.h"

namespace cairnfs::tools {

// Pins, by `cairnfs pin` or a file PINNED in it, and holds alone.
retention::Protection ReadProtection(const std::string& path);
// Also whether processes have files below it open. `own_opens`: this process may have had, whose close the daemon may
// not have seen yet. `silent` (may be null): why a host does not say what it has open; once it does not it is not asked
// again, as each question takes its time.
enum class OwnOpens { kNone, kMaybe };
retention::Protection ReadProtectionAndOpen(const std::string& path, OwnOpens own_opens, std::string* silent = nullptr);

nlohmann::ordered_json ProtectionJson(const retention::Protection& protection);  // pinned and held_until

struct Metrics {
  std::map<std::string, double> values;
  std::vector<std::string> notes;  // a sentence each: why one that is there does not count
  std::string unknown = {};        // why some cannot be told; empty: all can
};
// Those that the policy names, of the checkpoint with this path.
Metrics ReadMetrics(const std::string& path, const retention::Policy& policy);

// The value of an attribute; nullopt: the path has none. kTooLarge beside those of ErrnoError.
Result<std::optional<std::string>> ReadAttribute(const std::string& path, const char* name);

}  // namespace cairnfs::tools
