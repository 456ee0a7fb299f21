// Makes missing copies of chunks, when a node is out for good or chunks were stored with fewer copies than asked for.
//
// Each node goes through the lists of holders that it keeps. Of the holders of a chunk that are left, the first in the
// chunk's order that is up makes the copies. It also tells the chunk's home, when that has changed, who holds it.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "base/thread_annotations.h"
#include "cluster/holder_lists.h"
#include "cluster/types.h"

namespace cairnfs::cluster {

class ClusterChunkStoreImpl;

class Repair {
 public:
  Repair(ClusterChunkStoreImpl& store, uint64_t bytes_per_second_max);
  ~Repair() { Stop(); }
  void Stop();

  // Goes through the lists once more. Any thread; does not block.
  void Kick();
  struct Progress {
    uint64_t chunks_left, missing_copies;
    std::string phase;
  };
  Progress progress() const;

 private:
  struct Todo {
    Digest digest;
    Holders others;  // that have it, beside this node
  };
  void Run();
  bool RunOnce();  // false: to be done again, for something failed
  std::optional<Todo> Examine(const HolderEntry& entry, const View& view);
  bool Copy(const Todo& todo);
  bool StopsWithin(std::chrono::nanoseconds time);
  void SetPhase(const char* phase);

  ClusterChunkStoreImpl& store_;
  const uint64_t bytes_per_second_max_;
  std::atomic<uint64_t> chunks_left_{0}, missing_copies_{0};
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool kicked_ GUARDED_BY(mutex_) = false;
  size_t bytes_in_flight_ GUARDED_BY(mutex_) = 0;
  const char* phase_ GUARDED_BY(mutex_) = "";
  std::thread thread_;
};

}  // namespace cairnfs::cluster
