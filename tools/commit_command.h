// `cairnfs commit`: one rank of a commit.
#pragma once

#include <string>

namespace cairnfs::tools {

struct CommitCommand {
  std::string from, to;  // the directory and its final name
  unsigned ranks = 0;
  std::string rank;  // a number; empty: from the environment of the launcher, unless `id` is given
  std::string id;
  std::string timeout = "10min";
  bool json = false;
};

int RunCommit(const CommitCommand& command);

}  // namespace cairnfs::tools
