// The view as this node finds it: a node that did not answer counts as down, one that refused a chunk for want of space
// as full, each for a moment. So that work goes to the next node at once, and not after a lease's end.
#pragma once

#include <unordered_map>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "cluster/membership.h"

namespace cairnfs::cluster {

class Reachability {
 public:
  explicit Reachability(Membership& membership) : membership_(membership) {}

  // The nodes, with what was noticed put in. Any thread; cheap unless something changed.
  ViewPtr view() EXCLUDES_LOCK(mutex_);
  void NoteFailed(const NodeId& node) EXCLUDES_LOCK(mutex_);  // did not answer
  void NoteFull(const NodeId& node) EXCLUDES_LOCK(mutex_);
  // Forgets what was noticed: the membership has news.
  void Reset() EXCLUDES_LOCK(mutex_);

 private:
  struct Noticed {
    Clock::time_point failed_until{}, full_until{};
  };
  Membership& membership_;
  Mutex mutex_;
  std::unordered_map<NodeId, Noticed, NodeIdHash> noticed_ GUARDED_BY(mutex_);
  ViewPtr base_ GUARDED_BY(mutex_);      // of which adjusted_ was made
  ViewPtr adjusted_ GUARDED_BY(mutex_);  // null: to be made
  Clock::time_point valid_until_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::cluster
