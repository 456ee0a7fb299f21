// A few threads that run tasks in the order of a bounded queue. Internal.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairnfs::io {

class TaskQueue {
 public:
  struct Options {
    unsigned thread_count = 1;
    size_t size_max = 256;    // tasks that wait for a thread
    const char* thread_name;  // at most 15 characters, a literal
  };
  explicit TaskQueue(const Options& options);
  ~TaskQueue();  // Runs what is queued, then ends the threads.

  // Waits while the queue is full, except on a thread of this queue, which could then wait for itself.
  void Post(std::function<void()> task);

 private:
  void Run();

  const Options options_;
  Mutex mutex_;
  CondVar posted_;
  CondVar taken_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace cairnfs::io
