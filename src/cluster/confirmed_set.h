// Digests that were confirmed lately to have all their copies, so that saving them again asks nobody.
#pragma once

#include <unordered_set>

#include "base/types.h"

namespace cairnfs::cluster {

// Bounded: two generations, of which the older is dropped when the younger is full. Not thread-safe.
class ConfirmedSet {
 public:
  explicit ConfirmedSet(size_t count_max = 256 * 1024) : generation_max_(count_max / 2) {}
  bool Contains(const Digest& digest) const { return young_.contains(digest) || old_.contains(digest); }
  void Insert(const Digest& digest) {
    if (young_.size() >= generation_max_) {
      old_ = std::move(young_);
      young_.clear();
    }
    young_.insert(digest);
  }
  void Erase(const Digest& digest) {
    young_.erase(digest);
    old_.erase(digest);
  }
  void Clear() {
    young_.clear();
    old_.clear();
  }

 private:
  const size_t generation_max_;
  std::unordered_set<Digest, DigestHash> young_, old_;
};

}  // namespace cairnfs::cluster
