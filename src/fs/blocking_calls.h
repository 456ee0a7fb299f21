// BlockingCalls: requests that may wait for other hosts, on threads of their own. One whose caller is killed does not
// go on waiting, so that a process that was killed ends also while the shared store is away.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "kv/patience.h"

namespace cairnfs::fs {

class BlockingCalls {
 public:
  BlockingCalls(const std::string& name, unsigned thread_count);  // the threads' name, as TaskQueue's
  ~BlockingCalls();                                               // Stop
  BlockingCalls(const BlockingCalls&) = delete;

  // Runs what was posted, and ends the threads. Not on one of them. What is posted from the beginning of this on, also
  // by what still runs, is refused: two that post to each other can be stopped one after the other.
  void Stop();

  // Any thread. Calls `task` on one of the threads, in the order of posting. False after Stop: it is never called.
  bool Post(std::function<void()> task);
  // The same for a caller that can be killed: then a task that has no thread yet is not called, but `refused`, with
  // kInterrupted; and one that runs has what it waits for in the shared store given up (kv::Patience). `is_killed` is
  // asked now and then, perhaps also shortly after the task has ended. Both are called on another thread. After Stop
  // `refused` is called at once, on this one, with kUnavailable.
  void Post(std::function<void()> task, std::function<bool()> is_killed, std::function<void(const Error&)> refused);

 private:
  struct Call {
    std::function<void()> task;
    std::function<bool()> is_killed;
    std::function<void(const Error&)> refused;
    kv::Patience patience;
    enum class State { kPosted, kRunning, kRefused } state = State::kPosted;  // guarded by the owner's mutex_
    bool is_old = false;                                                      // of the watcher: it was there before
    std::list<std::shared_ptr<Call>>::iterator place;
  };

  void Run(Call& call);
  void Watch();
  void LetGo(Call& call);

  Mutex mutex_;
  CondVar first_, stop_;
  std::list<std::shared_ptr<Call>> calls_ GUARDED_BY(mutex_);  // posted or running
  bool stopping_ GUARDED_BY(mutex_) = false;                   // of the watcher
  bool is_closed_ GUARDED_BY(mutex_) = false;                  // nothing is posted any more
  std::unique_ptr<TaskQueue> queue_;                           // used with mutex_ held, unless is_closed_
  std::thread watcher_;
};

}  // namespace cairnfs::fs
