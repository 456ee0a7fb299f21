// LockHolders: which owners hold record locks in any file of this host, so that whoever begins to wait need not look
// through all locks to learn whether somebody may wait for it. Not thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "coherence/lock_table.h"

namespace cairnfs::coherence {

class LockHolders {
 public:
  // Takes over who holds locks in a file. `held`: all of these, by owner. `counted`: the owners of record locks that
  // this was told of that file last, and then those that it has now.
  void Count(const std::vector<FileLock>& held, std::vector<LockOwner>& counted);
  bool Contains(const LockOwner& owner) const { return files_.contains(owner); }

 private:
  std::map<LockOwner, size_t> files_;  // in how many files each of them holds some
};

}  // namespace cairnfs::coherence
