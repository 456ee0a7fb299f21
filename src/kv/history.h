// History: the last changes of a store that this process owns, and the watches that are told of them.
//
// Invariant: it knows every change of the revisions above forgotten_ and not above revision_. It keeps at most
// `bytes_max` of them. A watch that falls behind the changes that are kept is told `lost`.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "kv/shared_store.h"

namespace cairnfs::kv {

class History {
 public:
  // `revision`: of the store now. Changes up to it are not known.
  History(uint64_t revision, size_t bytes_max) : bytes_max_(bytes_max), revision_(revision), forgotten_(revision) {}
  ~History();  // REQUIRES: no watch is left
  History(const History&) = delete;

  // Adds what `revision` changed, perhaps nothing. REQUIRES: the revision is one more than the one before.
  void Append(uint64_t revision, std::vector<KvEvent> events);
  // Forgets all changes: the store is at `revision`, and how it came there is not known.
  void Restart(uint64_t revision);

  // As SharedKvStore::Watch; the watches must not outlive the history.
  struct Start {
    uint64_t after_revision;
    bool is_lost;  // it begins with `lost`
  };
  Result<std::unique_ptr<KvWatch>> Watch(std::string_view begin, std::string_view end, Start start,
                                         WatchCallbacks callbacks);
  Result<std::unique_ptr<KvWatch>> WatchFromNowOn(std::string_view begin, std::string_view end,
                                                  WatchCallbacks callbacks);

 private:
  class Watcher;
  struct Change {
    uint64_t revision;
    size_t bytes;
    std::vector<KvEvent> events;
  };

  void Run(Watcher& watcher) EXCLUDES_LOCK(mutex_);
  void DropOldest() REQUIRES_LOCK(mutex_);

  const size_t bytes_max_;

  Mutex mutex_;
  std::deque<std::shared_ptr<const Change>> changes_ GUARDED_BY(mutex_);  // in order of revision
  size_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t revision_ GUARDED_BY(mutex_);
  uint64_t forgotten_ GUARDED_BY(mutex_);
  std::list<Watcher*> watchers_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::kv
