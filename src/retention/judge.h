// The judge: which checkpoints of a run stay, and which may go. A function of what it is told; it reads nothing.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "retention/policy.h"

namespace cairnfs::retention {

// What keeps a checkpoint, whatever the policy.
struct Protection {
  bool pinned = false;
  bool sealed = false;
  std::optional<Timestamp> held_until = {};
  bool open = false;         // some process has a file below it open
  std::string unknown = {};  // why one of these cannot be told; empty: all can
};

struct Checkpoint : Protection {
  std::string name;
  bool committed = false;  // by a rename
  bool durable = false;
  Timestamp time = {};  // of the commit, or else of the last change
  std::map<std::string, double> metrics = {};
};

struct Verdict {
  bool goes = false;
  std::optional<uint64_t> step = {};  // nullopt: the pattern does not match, or the step is none
  std::string reason = {};            // begins in lower case, without the name
};

struct Judgement {
  std::vector<Verdict> verdicts;   // of each checkpoint, in the order in which they came
  std::vector<std::string> notes;  // a sentence each: what is odd, and how it was taken
};

// Newer is what has the larger step, or of one step the later time. What goes is older than the newest durable one, by
// step and by time; is not pinned, held at `now` or open; and no rule keeps it:
// Durable ones that are open do not count below: they may be being written anew.
//  - keep_last N: fewer than N durable ones are newer;
//  - keep_every N: N divides the step;
//  - keep_best: fewer than N durable ones have a better value, or the same and are newer;
//  - keep_for: its time is less than that ago.
// Without a pattern one that was not committed stays: nobody has said that it is a checkpoint.
// kInvalidArgument: the policy is wrong (CheckPolicy).
Result<Judgement> Judge(const Policy& policy, const std::vector<Checkpoint>& checkpoints, Timestamp now);

// Why one may not go, whatever the policy: it is pinned, held or open, or nobody can tell. nullopt: it may.
std::optional<std::string> WhyItStays(const Protection& protection, Timestamp now);
// `time` after `begun`, which users set as they like: it does not overflow. REQUIRES: time >= 0.
Timestamp EndOfWait(Timestamp begun, std::chrono::seconds time);

}  // namespace cairnfs::retention
