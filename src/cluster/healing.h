// Replaces copies that a check of this node's disk, or a read for another node, found damaged by those of other nodes,
// as a read here would.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <stop_token>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::cluster {

class ClusterChunkStoreImpl;

class Healing {
 public:
  Healing(ClusterChunkStoreImpl& store, uint64_t bytes_per_second_max);
  ~Healing() { Stop(); }
  // What is under way still ends, on threads of the store's.
  void Stop() EXCLUDES_LOCK(mutex_);

  // This node's copy is damaged. Any thread; does not block. Beyond a bound it is left to the next check.
  void Add(const Digest& digest) EXCLUDES_LOCK(mutex_);
  void SetRate(uint64_t bytes_per_second_max) { bytes_per_second_max_ = std::max<uint64_t>(1, bytes_per_second_max); }
  // The nodes have changed: what could not be replaced is tried again.
  void RetryNow() EXCLUDES_LOCK(mutex_);
  size_t left() const EXCLUDES_LOCK(mutex_);  // damaged here, and not replaced yet
  // Until all that was added was tried once, or none could be replaced for a minute: nodes that keep their lease and do
  // not answer make each try long. kInterrupted: `stop`, or Stop.
  Status Await(const std::stop_token& stop) EXCLUDES_LOCK(mutex_);

 private:
  void Run() EXCLUDES_LOCK(mutex_);
  std::optional<Digest> AwaitNext() EXCLUDES_LOCK(mutex_);  // nullopt: stopping
  void OnEnded(const Digest& digest, std::optional<size_t> replaced_bytes) EXCLUDES_LOCK(mutex_);

  ClusterChunkStoreImpl& store_;
  std::atomic<uint64_t> bytes_per_second_max_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::unordered_set<Digest, DigestHash> left_ GUARDED_BY(mutex_);     // waiting, under way or put off
  std::unordered_set<Digest, DigestHash> untried_ GUARDED_BY(mutex_);  // of these, what no try has ended for
  std::deque<Digest> waiting_ GUARDED_BY(mutex_);
  std::vector<Digest> put_off_ GUARDED_BY(mutex_);  // could not be replaced
  size_t running_ GUARDED_BY(mutex_) = 0;
  Clock::time_point next_at_ GUARDED_BY(mutex_){};
  Clock::time_point retry_at_ GUARDED_BY(mutex_){};  // of those put off
  Clock::time_point replaced_at_ GUARDED_BY(mutex_){};
  std::chrono::nanoseconds pause_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cairnfs::cluster
