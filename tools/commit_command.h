// `cairnfs commit`: one rank of a commit; or one that is deferred (deferred_commit.h).
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::tools {

struct CommitCommand {
  std::string from, to;  // the directory and its final name
  unsigned ranks = 0;
  unsigned at_least = 0;
  std::vector<std::string> required;
  std::string rank;  // a number; empty: from the environment of the launcher, unless `id` is given
  std::string id;
  std::string timeout;  // empty: of a rank 10 min, of a ticket none
  bool is_async = false;
  unsigned under_way_max = 1;
  std::string ticket;  // to wait for; `from` is then any path in the mount, or empty
  bool seal = false;   // by the rename that commits it
  bool json = false;
};

int RunCommit(const CommitCommand& command);

// What a commit is about, by the inode numbers of the mount.
struct CommitTarget {
  InodeId directory, final_parent;
  std::string final_name;
};
// Of a directory, or of one that has its final name already. Without slashes at their ends.
Result<CommitTarget> LookAtCommit(const std::string& from, const std::string& to);

}  // namespace cairnfs::tools
