#include "coherence/lock_holders.h"

#include <algorithm>
#include <iterator>

namespace cairnfs::coherence {

void LockHolders::Count(const std::vector<FileLock>& held, std::vector<LockOwner>& counted) {
  std::vector<LockOwner> now, gone, come;
  for (const FileLock& lock : held) {
    if (lock.owner.kind != LockKind::kRecord) continue;
    if (now.empty() || now.back() != lock.owner) now.push_back(lock.owner);
  }
  std::set_difference(counted.begin(), counted.end(), now.begin(), now.end(), std::back_inserter(gone));
  std::set_difference(now.begin(), now.end(), counted.begin(), counted.end(), std::back_inserter(come));
  for (const LockOwner& owner : come) ++files_[owner];
  for (const LockOwner& owner : gone) {
    const auto found = files_.find(owner);
    if (--found->second == 0) files_.erase(found);
  }
  counted = std::move(now);
}

}  // namespace cairnfs::coherence
