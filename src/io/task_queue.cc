#include "io/task_queue.h"

#include <pthread.h>

#include <cassert>

namespace cairnfs::io {
namespace {

// The queue whose thread this is.
thread_local const TaskQueue* own_queue = nullptr;

}  // namespace

TaskQueue::TaskQueue(const Options& options) : options_(options) {
  assert(options.thread_count > 0 && options.size_max > 0);
  for (unsigned i = 0; i < options.thread_count; i++) threads_.emplace_back([this] { Run(); });
}

TaskQueue::~TaskQueue() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    posted_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TaskQueue::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  while (tasks_.size() >= options_.size_max && own_queue != this) taken_.Wait(mutex_);
  tasks_.push_back(std::move(task));
  posted_.NotifyOne();
}

void TaskQueue::Run() {
  pthread_setname_np(pthread_self(), options_.thread_name);
  own_queue = this;
  MutexLock lock(mutex_);
  while (true) {
    while (tasks_.empty() && !ending_) posted_.Wait(mutex_);
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    taken_.NotifyOne();
    lock.Unlock();
    task();
    task = nullptr;
    lock.Lock();
  }
}

}  // namespace cairnfs::io
