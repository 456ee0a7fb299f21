// Calls: the threads for requests that may have to wait for other hosts. On a host alone none does, and the thread that
// received a request runs it. Among several hosts such requests have threads of their own.
#pragma once

#include <functional>

#include "base/task_queue.h"
#include "fs/blocking_calls.h"
#include "fs/filesystem.h"

namespace cairnfs::fs {

// All functions: any thread.
class Calls {
 public:
  virtual ~Calls() = default;
  // Runs `task` on a thread that may wait for other hosts. False, after Stop: it is never run.
  virtual bool Run(std::function<void()> task) = 0;
  // The same. If the caller is killed before the task has begun, `refused` is called instead.
  virtual void Run(const Caller& caller, std::function<void()> task, Done<void> refused) = 0;
  // The same, on other threads, for tasks that may wait for a round, for copies, or for the answer to a publish.
  virtual void RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused) = 0;
  virtual void Stop() {}
};

class LocalCalls final : public Calls {
 public:
  explicit LocalCalls(TaskQueue& waiters) : waiters_(waiters) {}  // outlives it
  bool Run(std::function<void()> task) override {
    task();
    return true;
  }
  void Run(const Caller&, std::function<void()> task, Done<void>) override { task(); }
  void RunToWait(const Caller&, std::function<void()> task, Done<void>) override { waiters_.Post(std::move(task)); }

 private:
  TaskQueue& waiters_;
};

// Two pools: however many tasks wait for rounds, those that only need the shared store go on.
class SharedCalls final : public Calls {
 public:
  SharedCalls();
  bool Run(std::function<void()> task) override { return for_store_.Post(std::move(task)); }
  void Run(const Caller& caller, std::function<void()> task, Done<void> refused) override;
  void RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused) override;
  void Stop() override;

 private:
  BlockingCalls for_store_, for_rounds_;
};

}  // namespace cairnfs::fs
