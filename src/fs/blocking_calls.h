// BlockingCalls: requests that may wait for other hosts, on threads of their own. One whose caller is killed before it
// has a thread does not go on waiting for one, so that a process that was killed ends also while the shared store is
// away.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/context.h"
#include "base/result.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"

namespace cairnfs::fs {

class BlockingCalls {
 public:
  BlockingCalls(const std::string& name, unsigned thread_count);  // the threads' name, as TaskQueue's
  ~BlockingCalls() { Stop(); }
  BlockingCalls(const BlockingCalls&) = delete;

  // Runs what was posted, and ends the threads. Not on one of them. What is posted from the beginning of this on, also
  // by what still runs, is refused: two that post to each other can be stopped one after the other.
  void Stop();

  // Any thread. Calls `task` on one of the threads, in the order of posting. False after Stop: it is never called.
  bool Post(std::function<void()> task);
  // The same. Where the context is stopped before the task has a thread, `refused` is called in its place, with
  // kInterrupted, on the thread that stops it; after Stop with kUnavailable, on this one.
  void Post(const Context& context, std::function<void()> task, std::function<void(const Error&)> refused);

 private:
  struct Call;

  Mutex mutex_;
  bool is_closed_ GUARDED_BY(mutex_) = false;  // nothing is posted any more
  std::unique_ptr<TaskQueue> queue_;           // used with mutex_ held, unless is_closed_
};

}  // namespace cairnfs::fs
