// Healing: the copies on this node that a check or a read found damaged, until each was replaced by that of another
// node. Any thread; it has none of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_set>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "base/types.h"

namespace cairnfs::cluster {

class Healing {
 public:
  // Replaces one copy; must not block. `ended` is called once, perhaps at once, with the bytes that were replaced, 0
  // when the copy is sound again, or nullopt when it could not be done.
  using Ended = std::function<void(std::optional<size_t>)>;
  using Replace = std::function<void(const Digest&, Ended ended)>;
  Healing(Replace replace, uint64_t bytes_per_second_max) : replace_(std::move(replace)) {
    SetRate(bytes_per_second_max);
  }

  // This node's copy is damaged. Does not block. Beyond a bound it is left to the next check.
  void Add(const Digest& digest) EXCLUDES_LOCK(mutex_);
  void SetRate(uint64_t bytes_per_second_max) { bytes_per_second_max_ = std::max<uint64_t>(1, bytes_per_second_max); }
  void Tick() EXCLUDES_LOCK(mutex_);          // many times per second: begins what is due
  void RetryNow() EXCLUDES_LOCK(mutex_);      // the nodes have changed: what could not be replaced is tried again
  void Close() EXCLUDES_LOCK(mutex_);         // nothing new is begun
  size_t left() const EXCLUDES_LOCK(mutex_);  // damaged here, and not replaced yet
  // Until all that was added was tried once, or none could be replaced for a minute: nodes that keep their lease and do
  // not answer make each try long. kInterrupted: the context expired, or Close.
  Status Await(const Context& context) EXCLUDES_LOCK(mutex_);

 private:
  std::vector<Digest> TakeDue() EXCLUDES_LOCK(mutex_);
  void OnEnded(const Digest& digest, std::optional<size_t> replaced_bytes) EXCLUDES_LOCK(mutex_);

  const Replace replace_;
  std::atomic<uint64_t> bytes_per_second_max_{1};
  mutable Mutex mutex_;
  CondVar ended_;  // a try, or all of them
  bool closed_ GUARDED_BY(mutex_) = false;
  std::unordered_set<Digest, DigestHash> left_ GUARDED_BY(mutex_);     // waiting, under way or put off
  std::unordered_set<Digest, DigestHash> untried_ GUARDED_BY(mutex_);  // of these, what no try has ended for
  std::deque<Digest> waiting_ GUARDED_BY(mutex_);
  std::vector<Digest> put_off_ GUARDED_BY(mutex_);  // could not be replaced
  size_t running_ GUARDED_BY(mutex_) = 0;
  Clock::time_point next_at_ GUARDED_BY(mutex_){};
  Clock::time_point retry_at_ GUARDED_BY(mutex_){};  // of those put off
  Clock::time_point replaced_at_ GUARDED_BY(mutex_){};
  std::chrono::nanoseconds pause_ GUARDED_BY(mutex_) = std::chrono::seconds(5);
};

}  // namespace cairnfs::cluster
