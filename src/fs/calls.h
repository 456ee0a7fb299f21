// Calls: on which threads requests run that may have to wait. On a host alone nothing waits for other hosts, and the
// thread that received a request runs it; among several what may wait has threads of its own.
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
  // `task` on a thread that may wait for other hosts. False after Stop: it is never called.
  virtual bool Run(std::function<void()> task) = 0;
  // The same for no longer than until the caller is being killed; then `refused` is told where it has not begun.
  virtual void Run(const Caller& caller, std::function<void()> task, Done<void> refused) = 0;
  // The same for what may wait for a round, for copies, or for the answer to a publish: it has other threads.
  virtual void RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused) = 0;
  virtual void Stop() = 0;
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
  void Stop() override {}

 private:
  TaskQueue& waiters_;
};

// However many wait for rounds, those that wait for the shared store alone go on.
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
