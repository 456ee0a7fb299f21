// FinishQueue: requests that may take minutes, on a few threads. Whoever asks waits for seconds at a time and then asks
// anew: a request whose caller has gone is not begun, and does not stay either, however long those take that were.
#pragma once

#include <functional>
#include <list>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/peer_server.h"

namespace cairnfs::cluster {

class FinishQueue {
 public:
  explicit FinishQueue(unsigned thread_count);
  ~FinishQueue();  // runs what was posted
  FinishQueue(const FinishQueue&) = delete;

  // Any thread. Calls `run`, which answers by `respond`, on one of the threads, in the order of posting; or, where
  // nobody waits for the answer any more, answers by itself.
  void Post(std::function<void()> run, PeerServer::Respond respond);
  // Requests that have no thread yet; with those of callers that went lately.
  size_t waiting() const;

 private:
  struct Request {
    std::function<void()> run;
    PeerServer::Respond respond;
  };
  void Run();

  const unsigned thread_count_;
  mutable Mutex mutex_;
  std::list<Request> waiting_ GUARDED_BY(mutex_);
  size_t look_at_ GUARDED_BY(mutex_);  // so many that wait: those whose callers have gone are looked for
  unsigned running_ GUARDED_BY(mutex_) = 0;
  TaskQueue threads_;
};

}  // namespace cairnfs::cluster
