// RecordTotals: how many bytes all file records stand for. Reads them all once, and from then on, and meanwhile, hears
// of each change.
//
// Why the two fit together: each page of the walk holds at one revision. A change to a key of that page is in it when
// its revision is not above that one, and is added to it otherwise; so all changes that come while the walk goes on are
// kept until it is over.
#pragma once

#include <optional>
#include <vector>

#include "base/thread_annotations.h"
#include "base/types.h"
#include "kv/local_store.h"

namespace cairnfs::fs {

// Any thread.
class RecordTotals {
 public:
  // Begins to watch file records; nobody changes them before it is made. `kv` outlives it.
  explicit RecordTotals(kv::LocalKvStore& kv);
  ~RecordTotals();
  RecordTotals(const RecordTotals&) = delete;

  // The walk; once. Given up when the context expires or the store fails: the sum is of what was read, then.
  void Count(const Context& context);
  // Waits for the walk.
  uint64_t AllocatedBytes();
  // Of one file's record; 0 where there is none.
  uint64_t AllocatedBytesOf(InodeId inode);

 private:
  struct Change {
    InodeId inode;
    uint64_t added;  // modulo 2^64
    uint64_t revision;
  };
  struct Page {
    std::string last_key;
    uint64_t revision;
  };
  void Note(std::string_view key, const std::optional<std::string>& before, const std::optional<std::string>& after,
            uint64_t revision);

  kv::LocalKvStore& kv_;

  // Lock order: after the store's lock.
  mutable Mutex mutex_;
  CondVar counted_;
  bool is_counted_ GUARDED_BY(mutex_) = false;
  uint64_t allocated_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<Change> changes_ GUARDED_BY(mutex_);  // while the walk goes on
};

}  // namespace cairnfs::fs
