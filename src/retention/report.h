// What applying a policy once came to: told line by line by the process that does it, and kept for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs::retention {

struct Told {
  std::string name;    // of a checkpoint
  std::string reason;  // why it went, or why it could not
};

struct Report {
  static constexpr size_t kToldMax = 16;        // of each list; the counts count all
  static constexpr size_t kTextBytesMax = 300;  // of a name or reason; what is longer is cut

  std::vector<Told> removed = {}, failed = {};
  uint64_t removed_count = 0, failed_count = 0, stay_count = 0;
  std::vector<std::string> notes = {};  // a sentence each
  std::string error = {};               // why it was not applied to its end; empty: it was
  bool has_policy = true;
  // Something stays only for now, as it is open or not durable yet: to be looked at again soon.
  bool stays_for_now = false;
  std::optional<int64_t> next = {};  // when the first rule or hold ends, in seconds since 1970

  // Takes over what one line tells. A line that tells of a removal returns it. kInvalidArgument: it is none of these.
  Result<std::optional<Told>> Add(std::string_view line);
  // For people and programs (docs/commits.md), as JSON; some ten KiB.
  std::string Text() const;
};

// The lines, without their ends.
std::string RemovedLine(const Told& removed);
std::string FailedLine(const Told& failed);
std::string EndLine(const Report& end);  // all but what the lines before have told

}  // namespace cairnfs::retention
