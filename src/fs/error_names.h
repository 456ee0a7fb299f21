// ErrorNames: says in the log which file an inode number in an error message belongs to.
//
// The message itself comes at once and names the inode, because finding a path takes a pass over all names (or, where
// records name their directory, some reads); the path follows in a line of its own, after a second in which others that
// fail meanwhile are gathered: a disk that is full or dead fails them by the thousand. An inode is named again after a
// minute at the earliest.
#pragma once

#include <map>
#include <set>
#include <stop_token>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "kv/store.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

class ErrorNames {
 public:
  // `queue` runs the search; it must end before this is destroyed.
  ErrorNames(kv::KvStore& kv, meta::Namespace& names, TaskQueue& queue, bool records_name_directories)
      : kv_(kv), names_(names), queue_(queue), records_name_directories_(records_name_directories) {}
  // Names what was noted last, within two seconds, and ends a search that takes longer; nothing is posted to the queue
  // after it. Once.
  void Stop();
  // Any thread, any lock held; cheap however many inodes were noted.
  void Note(InodeId inode);

 private:
  using TimePoint = Clock::time_point;
  void ForgetOld(TimePoint now) REQUIRES_LOCK(mutex_);
  void PostSearch() REQUIRES_LOCK(mutex_);
  void Search();
  std::set<InodeId> Gather();
  void Name(const std::set<InodeId>& inodes);

  kv::KvStore& kv_;
  meta::Namespace& names_;
  TaskQueue& queue_;
  const bool records_name_directories_;
  std::stop_source stop_;
  Mutex mutex_;
  CondVar changed_;  // stopped_, is_searching_
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool is_searching_ GUARDED_BY(mutex_) = false;  // or about to: one search at a time
  std::set<InodeId> wanted_ GUARDED_BY(mutex_);
  std::map<InodeId, TimePoint> noted_ GUARDED_BY(mutex_);
  TimePoint tidied_at_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
