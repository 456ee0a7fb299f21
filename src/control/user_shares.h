// UserShares: places that any user may take, and no user all of them. A user has at most twice as many as are free: two
// thirds while nobody else has any. So a user who comes later finds some.
#pragma once

#include <sys/types.h>

#include <cassert>
#include <cstddef>
#include <map>

#include "base/fair_share.h"
#include "base/thread_annotations.h"

namespace cairnfs::control {

// Any thread.
class UserShares {
 public:
  explicit UserShares(size_t places) : places_(places) {}
  UserShares(const UserShares&) = delete;

  // The most that one user can have: while no other has any.
  static constexpr size_t MostOfOne(size_t places) { return (2 * places + 2) / 3; }

  // False: the user has a full share.
  bool Take(uid_t user) {
    MutexLock lock(mutex_);
    const auto found = taken_.find(user);
    if (!HasShare(found == taken_.end() ? 0 : found->second, total_, places_)) return false;
    ++taken_[user];
    ++total_;
    return true;
  }
  // REQUIRES: a place that the user took.
  void Leave(uid_t user) {
    MutexLock lock(mutex_);
    --total_;
    const auto found = taken_.find(user);
    assert(found != taken_.end());
    if (--found->second == 0) taken_.erase(found);
  }

 private:
  const size_t places_;
  Mutex mutex_;
  std::map<uid_t, size_t> taken_ GUARDED_BY(mutex_);
  size_t total_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairnfs::control
