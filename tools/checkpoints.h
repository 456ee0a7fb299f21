// The directories of a run that are its checkpoints, as anybody who may read them sees them: by their names, and by the
// attribute user.cairnfs.commit that CairnFS answers (docs/commits.md). No daemon is asked. All of it also works on
// another file system, where no directory has a commit.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "retention/step_pattern.h"

namespace cairnfs::tools {

using retention::StepPattern;

struct Checkpoint {
  std::string path, name;
  std::optional<uint64_t> step;
  std::optional<nlohmann::ordered_json> commit;  // what CairnFS tells of it
  // Seconds since 1970: of the commit, or else when it or what lies right in it was last changed.
  double time = 0;
  uint64_t inode = 0;

  uint64_t revision() const;  // of the commit; 0: it has none
};

struct CheckpointList {
  std::vector<Checkpoint> checkpoints;  // by name
  std::vector<std::string> skipped;     // a sentence each: what matched and is none
  std::vector<std::string> in_removal;  // the same of what retention removes, or has left
};

// Commits that were read before, by path. A rename changes the directory's ctime.
struct KnownCommit {
  uint64_t inode = 0;
  double ctime = 0;
  std::optional<nlohmann::ordered_json> commit = {};
  bool is_left = false;  // of a checkpoint that retention has removed
};
using KnownCommits = std::map<std::string, KnownCommit>;

// Those right below `directory`. Reads the commits that `known` does not have, which then has those of this list and no
// others; null: all. With `known` the time of one without a commit is that of the directory alone. kNotFound,
// kNotDirectory, kPermission, kUnavailable, kIo.
Result<CheckpointList> ListCheckpoints(const std::string& directory, const StepPattern& pattern,
                                       KnownCommits* known = nullptr);
// The same of a directory that a user names. kUnavailable also where it lies in no CairnFS: a run is not empty because
// its mount is missing.
Result<CheckpointList> ListRun(const std::string& directory, const StepPattern& pattern, KnownCommits* known = nullptr);
// The attribute of one directory; nullopt: it has none, or this is no CairnFS.
Result<std::optional<nlohmann::ordered_json>> ReadCommit(const std::string& path);

}  // namespace cairnfs::tools
