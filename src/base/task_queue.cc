#include "base/task_queue.h"

#include <pthread.h>

#include <cassert>
#include <system_error>

#include "base/thread_priority.h"

namespace cairnfs {

TaskQueue::TaskQueue(const std::string& name, unsigned thread_count, Priority priority) {
  try {
    for (unsigned i = 0; i < thread_count; i++) {
      threads_.emplace_back([this, name, priority] { Run(name, priority); });
    }
  } catch (const std::system_error& error) {
    End();
    throw std::system_error(error.code(), "thread " + std::to_string(threads_.size() + 1) + " of " +
                                              std::to_string(thread_count) + " of " + name);
  }
}

TaskQueue::~TaskQueue() { End(); }

void TaskQueue::End() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  posted_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::Post(std::function<void()> task) {
  // Notifies under the lock: once another thread has run the task, the queue may go.
  MutexLock lock(mutex_);
  assert(tasks_.size() < kTasksMax);
  tasks_.push_back(std::move(task));
  posted_.NotifyOne();
}

void TaskQueue::PostFirst(std::function<void()> task) {
  MutexLock lock(mutex_);
  assert(tasks_.size() < kTasksMax);
  tasks_.push_front(std::move(task));
  posted_.NotifyOne();
}

void TaskQueue::Run(const std::string& name, Priority priority) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (priority == Priority::kBackground) MakeThreadBackground();
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mutex_);
      while (tasks_.empty() && !stopping_) posted_.Wait(mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace cairnfs
