// Open files and directories, and the tables in which they are found.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "fs/directory_listing.h"
#include "fs/filesystem.h"
#include "fs/inode.h"

namespace cairnfs::fs {

// An open file.
struct Handle {
  InodePtr inode;
  OpenFlags flags;
  OpenMode mode = OpenMode::kOrdinary;
  BackingId backing = 0;                // with kPassed
  uint64_t session = 0;                 // of the host when it was opened
  uint64_t store_state = 0;             // and ClusterHost's
  std::atomic<bool> has_locked{false};  // somebody was granted a lock through it
  SaveTallyPtr tally;                   // of its directory; null: it is not open for writing, or none is known

  Mutex mutex;
  uint64_t error_seen GUARDED_BY(mutex) = 0;
  bool atime_checked GUARDED_BY(mutex) = false;
  uint64_t next_offset GUARDED_BY(mutex) = 0;     // where the last read ended
  uint64_t read_ahead_end GUARDED_BY(mutex) = 0;  // up to where chunks were asked for
  uint64_t read_ahead_window GUARDED_BY(mutex) = 0;
  // Who wrote through it: their closes wait. 0: some process that is not known. Among other hosts.
  std::set<pid_t> writers GUARDED_BY(mutex);
  std::set<uint32_t> writer_threads GUARDED_BY(mutex);  // two of them on a host alone, where only one tells anything
};
using HandlePtr = std::shared_ptr<Handle>;

struct DirectoryHandle {
  InodeId inode;
  Mutex mutex;
  std::shared_ptr<const DirectoryListing> listing GUARDED_BY(mutex);  // null: not read yet
};

// Things by id, in shards.
template <typename T>
class IdTable {
 public:
  HandleId Add(std::shared_ptr<T> item) {
    HandleId id = next_.fetch_add(1);
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    shard.items.emplace(id, std::move(item));
    return id;
  }
  std::shared_ptr<T> Find(HandleId id) {
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    auto found = shard.items.find(id);
    return found == shard.items.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> Take(HandleId id) {
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    auto found = shard.items.find(id);
    if (found == shard.items.end()) return nullptr;
    std::shared_ptr<T> item = std::move(found->second);
    shard.items.erase(found);
    return item;
  }

 private:
  static constexpr size_t kShards = 16;
  struct Shard {
    Mutex mutex;
    std::unordered_map<HandleId, std::shared_ptr<T>> items GUARDED_BY(mutex);
  };
  std::atomic<HandleId> next_{1};
  std::array<Shard, kShards> shards_;
};

}  // namespace cairnfs::fs
