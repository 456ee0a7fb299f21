// DescriptorLooks: looks at the descriptors of processes (HasOpenForWriting), on threads of their own.
//
// A process can keep such a look waiting for ever. The text of an epoll descriptor waits for whoever adds a file to the
// set, and he waits for the file: one of a FUSE filesystem of the user's own need not answer. No signal ends that wait.
// So a user has few of the threads, and nobody waits for a look for longer than kLookMax. The threads have none of the
// daemon's descriptors: one that is stuck would keep these open, and so the mount and its lock, after the daemon's end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/task_queue.h"
#include "base/types.h"
#include "fs/filesystem.h"
#include "fs/waits.h"

namespace cairnfs::fs {

class DescriptorLooks {
 public:
  static constexpr unsigned kThreads = 32, kThreadsOfUser = 4;  // at most
  static constexpr std::chrono::seconds kLookMax{5};
  using Look = std::function<bool(uint32_t thread, InodeId inode)>;  // HasOpenForWriting

  struct Parts {  // outlive Stop
    Waits& waits;
    TaskQueue& waiters;
  };
  // What `look` uses is there until the process ends.
  DescriptorLooks(const Parts& parts, Look look);
  ~DescriptorLooks() { Stop(); }
  DescriptorLooks(const DescriptorLooks&) = delete;

  // Leaves looks that are stuck. Who was not answered by now is not any more.
  void Stop();

  // Any thread. Calls `done` once, on another one: with success where the caller's process does not have the file open
  // for writing. kBusy: it has, or nobody can tell in time; kInterrupted: the caller was killed first. `done` must not
  // wait.
  void CheckClosed(const Caller& caller, InodeId inode, Done<void> done);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const Parts at_;
  const std::shared_ptr<State> state_;  // threads that are stuck outlive this
};

}  // namespace cairnfs::fs
