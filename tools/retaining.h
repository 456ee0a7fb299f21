// What `cairnfs retain` and the daemons' runs of a policy have in common: judging the checkpoints of the run that is
// the current directory (run_directory.h), and removing those that go.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "retention/policy.h"

namespace cairnfs::tools {

// Of one checkpoint, or temporary directory.
struct Fate {
  std::string name;
  std::optional<uint64_t> step = {};
  uint64_t inode = 0;
  bool goes = false, removed = false;
  size_t kept_inside = 0;  // entries right in it that stay when it goes
  std::string reason = {};
  // Of a temporary directory: it goes if nothing was written below it for so long.
  std::optional<std::chrono::seconds> unwritten_for = {};
};

struct Fates {
  std::vector<Fate> lines = {};         // checkpoints, the newest first, and temporary directories
  std::vector<std::string> notes = {};  // a sentence each
  // Something stays only for now: as it is open, or not durable yet.
  bool stays_for_now = false;
  std::optional<Timestamp> next = {};  // when the first rule or hold ends that keeps one
};

// `only_of`: nothing that another user owns goes.
Result<Fates> JudgeAll(const retention::Policy& policy, std::optional<uid_t> only_of);
// What the caller of RemoveAll has to say.
struct Removing {
  std::function<Result<Fates>()> judge;                        // anew: removing may take long
  std::function<bool()> is_wanted = [] { return true; };       // asked before each; no: the others stay for now
  std::function<void(const Fate&)> tell = [](const Fate&) {};  // after each
};
// Removes those that go, the oldest first. One that would stay by now stays: they are judged anew every few seconds.
// The first error, after all were tried.
Status RemoveAll(const retention::Policy& policy, Fates& fates, const Removing& removing);

}  // namespace cairnfs::tools
