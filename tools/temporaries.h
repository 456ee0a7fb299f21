// Temporary directories right in that of a run, for the rules `abandoned` of its policy: `cairnfs retain --abandoned`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "retention/abandoned.h"

namespace cairnfs::tools {

// "PATTERN:TIME", as "*.tmp*:24h"; the pattern may have colons. kInvalidArgument says what would be right.
Result<retention::AbandonedRule> ParseAbandoned(const std::string& text);

struct FoundTemporary {
  uint64_t inode = 0;
  // Read only where nothing was written below it for long enough: else it stays anyway.
  bool may_be_open = false;
  retention::Temporary temporary = {};
};
// Those in the current directory that a rule is about and that have no commit. `only_of`: nothing that another user
// owns goes. `silent`: ReadProtectionAndOpen.
Result<std::vector<FoundTemporary>> ListTemporaries(const retention::AbandonedRules& rules,
                                                    std::optional<uid_t> only_of, Timestamp now, std::string& silent);

// When something below the directory was written, made, removed or changed last: of the directory itself its time of
// modification counts, and of all below it that of change, too. Ends at the first that is later than `enough`, and
// tells that. An error: it cannot be told; or there is something below it that must not go with it: what is pinned or
// held, has a policy, or another owner than `only_of`.
struct WalkLimits {
  Timestamp enough;
  std::optional<uid_t> only_of = {};
  size_t entries_max = 1'000'000;
};
// Takes what it has looked at from `entries_max`; kTooLarge: there is more.
Result<Timestamp> LastWritten(const std::string& name, WalkLimits& limits);

}  // namespace cairnfs::tools
