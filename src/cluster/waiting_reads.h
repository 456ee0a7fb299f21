// Reads of chunks that are on no node that answers: they wait for those that may come back, and are tried anew.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <unordered_set>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "cluster/remote_reader.h"

namespace cairnfs::cluster {

// No thread waits here, and a read that waits has no buffers. Any thread.
//
// A read waits until `wait_max` after it began, or after the last of those nodes fell silent, whichever comes first. So
// who reads on over chunks of nodes that do not come back waits for these nodes once, not once for each chunk.
class WaitingReads {
 public:
  // Reads once more; must not block.
  using Attempt = std::function<void(const Digest&, RemoteReader::FetchCallback)>;
  struct Request {
    Digest digest;
    Clock::time_point began;
    store::ChunkCallback done;
  };
  WaitingReads(Attempt attempt, std::chrono::milliseconds wait_max)
      : attempt_(std::move(attempt)), wait_max_(wait_max) {}

  // A read that failed. `done` is called once, perhaps at once, with what it came to in the end.
  void Add(Request request, const Error& error, Clock::time_point away_since) EXCLUDES_LOCK(mutex_);
  void Tick() EXCLUDES_LOCK(mutex_);           // now and then: tries what is due, ends what has waited for long enough
  void RetryNow() EXCLUDES_LOCK(mutex_);       // the nodes have changed
  void Close() EXCLUDES_LOCK(mutex_);          // ends all of them, and lets none wait from now on
  void AwaitAttempts() EXCLUDES_LOCK(mutex_);  // until none is under way. REQUIRES: closed

 private:
  struct Read {
    Request request;
    Error error;  // of the last attempt
    Clock::time_point until, try_at{};
    std::chrono::milliseconds pause{};
    bool is_tried = false;  // now
  };
  using ReadPtr = std::shared_ptr<Read>;

  Clock::time_point Until(const Request& request, Clock::time_point away_since) const;
  void Schedule(Read& read, Clock::time_point now) REQUIRES_LOCK(mutex_);
  void Try(const ReadPtr& read) EXCLUDES_LOCK(mutex_);
  void OnTried(const ReadPtr& read, Result<store::ChunkData> data, const std::optional<Clock::time_point>& away_since)
      EXCLUDES_LOCK(mutex_);
  bool HasEnded(const ReadPtr& read, Result<store::ChunkData>& data, const std::optional<Clock::time_point>& away_since)
      REQUIRES_LOCK(mutex_);

  const Attempt attempt_;
  const std::chrono::milliseconds wait_max_;
  Mutex mutex_;
  CondVar ended_;
  bool closed_ GUARDED_BY(mutex_) = false;
  size_t attempts_ GUARDED_BY(mutex_) = 0;
  std::unordered_set<ReadPtr> reads_ GUARDED_BY(mutex_);  // who takes one out calls its `done`
  std::minstd_rand random_ GUARDED_BY(mutex_){std::random_device()()};
};

}  // namespace cairnfs::cluster
