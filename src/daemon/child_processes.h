// Processes that the daemon starts to go through its mount with the rights of a user: so the kernel refuses what that
// user could not do (docs/decisions/retention.md). They tell line by line on their output what comes of it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::daemon {

// Where the filesystem is mounted, absolute; and the program cairnfs.
struct RunnerOptions {
  std::string mount_point;
  std::string program;
};

// Any thread.
class ChildProcesses {
 public:
  ChildProcesses() = default;
  ~ChildProcesses() { ReapLeft(); }
  ChildProcesses(const ChildProcesses&) = delete;

  // Starts the program, words[0], hands on each line that it tells, and ends it when it has told all, or once the
  // context has expired: false. Returns some seconds after that at the latest, even if the process does not end: one
  // that waits for a call of this filesystem ends when that is answered. kBusy: too many wait so; kFailed and others:
  // it cannot be started.
  Result<bool> Run(const Context& context, const std::vector<std::string>& words,
                   const std::function<void(std::string line)>& take_line);

 private:
  void End(pid_t child) EXCLUDES_LOCK(mutex_);
  size_t ReapLeft() EXCLUDES_LOCK(mutex_);  // how many are left

  Mutex mutex_;
  std::vector<pid_t> left_ GUARDED_BY(mutex_);  // killed, and not ended yet
};

// The program cairnfs: beside this one, in ../bin of it, or where it was installed. kNotFound.
Result<std::string> FindCairnfs();

}  // namespace cairnfs::daemon
