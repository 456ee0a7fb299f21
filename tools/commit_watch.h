// CommitWatch: the commits of a run as they come, each once, in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoints.h"

namespace cairnfs::tools {

class CommitWatch {
 public:
  // Called at each look, perhaps twice: what the directory has by then.
  using List = std::function<Result<CheckpointList>()>;
  // Called for each commit before it is told, so that it stays. After an error the commit is not told, but found anew.
  using Hold = std::function<Status(const Checkpoint&)>;
  // `since`: only later revisions. nullopt: what there is at the first look is told by none.
  CommitWatch(List list, std::optional<uint64_t> since, Hold hold = {})
      : list_(std::move(list)), hold_(std::move(hold)), since_(since) {}

  // What was committed since the last look, by revision; of one revision, which an exchange gives to both, by name.
  // What was removed since is not among it.
  Result<std::vector<Checkpoint>> Look();

 private:
  Result<std::vector<Checkpoint>> FindFresh();

  const List list_;
  const Hold hold_;
  const std::optional<uint64_t> since_;
  bool is_first_ = true;
  std::set<std::pair<uint64_t, uint64_t>> told_;  // revision and inode: those of an exchange have one revision
};

}  // namespace cairnfs::tools
