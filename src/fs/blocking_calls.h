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
  BlockingCalls(std::string name, unsigned thread_count);  // the threads' name, as TaskQueue's
  ~BlockingCalls();                                        // runs what was posted
  BlockingCalls(const BlockingCalls&) = delete;

  // Any thread. Calls `task` on one of the threads, in the order of posting.
  void Post(std::function<void()> task) { queue_->Post(std::move(task)); }
  // The same for a caller that can be killed: then a task that has no thread yet is not called, but `refused`, with
  // kInterrupted; and one that runs has what it waits for in the shared store given up (kv::Patience). `is_killed` is
  // asked now and then, perhaps also shortly after the task has ended. Both are called on another thread.
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
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<TaskQueue> queue_;
  std::thread watcher_;
};

}  // namespace cairnfs::fs
