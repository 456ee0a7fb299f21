#include "commit_watch.h"

#include <algorithm>
#include <utility>

namespace cairnfs::tools {

Result<std::vector<Checkpoint>> CommitWatch::Look() {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<Checkpoint> fresh, FindFresh());
  // A listing is not of one moment: an older one may have come behind its back. What the second one has beyond the
  // newest of the first waits, as one before it may be missing there, too.
  if (!fresh.empty()) {
    const uint64_t newest = fresh.back().revision();
    CAIRNFS_ASSIGN_OR_RETURN(fresh, FindFresh());
    std::erase_if(fresh, [&](const Checkpoint& checkpoint) { return checkpoint.revision() > newest; });
  }
  const bool is_told = !is_first_ || since_;
  if (is_told && hold_) {
    for (const Checkpoint& checkpoint : fresh) CAIRNFS_RETURN_IF_ERROR(hold_(checkpoint));
  }
  for (const Checkpoint& checkpoint : fresh) told_.emplace(checkpoint.revision(), checkpoint.inode);
  is_first_ = false;
  if (!is_told) fresh.clear();
  return fresh;
}

Result<std::vector<Checkpoint>> CommitWatch::FindFresh() {
  CAIRNFS_ASSIGN_OR_RETURN(CheckpointList list, list_());
  std::vector<Checkpoint> fresh;
  for (Checkpoint& checkpoint : list.checkpoints) {
    const uint64_t revision = checkpoint.revision();
    const bool is_told = told_.contains({revision, checkpoint.inode});
    if (revision > since_.value_or(0) && !is_told) fresh.push_back(std::move(checkpoint));
  }
  std::stable_sort(fresh.begin(), fresh.end(),
                   [](const Checkpoint& left, const Checkpoint& right) { return left.revision() < right.revision(); });
  return fresh;
}

}  // namespace cairnfs::tools
