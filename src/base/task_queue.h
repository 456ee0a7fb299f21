// Threads that run tasks in the order they came, from one queue.
//
// Post never waits: tasks post tasks, of their own queue and of others, and a thread that waited for room could be the
// one that makes it. So whoever posts bounds what it posts, and says beside its queue by what: each task stands for
// something that is bounded elsewhere (a request in the kernel's queue, a chunk that holds pool buffers, a read). A
// queue of kTasksMax says that this is broken, and ends the process before it has taken the memory of the machine.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace cairnfs {

class TaskQueue {
 public:
  enum class Priority { kNormal, kBackground };  // see base/thread_priority.h
  static constexpr size_t kTasksMax = 1 << 20;

  // `name` shows in ps and gdb, its first 15 characters. Throws std::system_error, with no thread left behind, when the
  // system lets no more threads start. The code that opens the process's parts catches that.
  TaskQueue(const std::string& name, unsigned thread_count, Priority priority = Priority::kNormal);
  ~TaskQueue();  // runs what is queued, then joins
  TaskQueue(const TaskQueue&) = delete;

  // Any thread. PostFirst puts the task ahead of those that wait. REQUIRES: fewer than kTasksMax wait.
  void Post(std::function<void()> task);
  void PostFirst(std::function<void()> task);

 private:
  void Run(const std::string& name, Priority priority);
  void End();
  Mutex mutex_;
  CondVar posted_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace cairnfs
