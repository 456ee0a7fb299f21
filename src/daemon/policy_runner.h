// Applies the policy of a directory by a process of its own, `cairnfs apply-policy`, which goes through the mount with
// the rights of the directory's owner: so the kernel refuses what that user could not do (docs/decisions/retention.md).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "fs/policies.h"
#include "retention/report.h"

namespace cairnfs::daemon {

// Any thread.
class PolicyRunner {
 public:
  // Where the filesystem is mounted, absolute; and the program cairnfs.
  struct Options {
    std::string mount_point;
    std::string program;
  };
  explicit PolicyRunner(Options options) : options_(std::move(options)) {}
  ~PolicyRunner();

  // fs::PolicyRunner. Returns some seconds after the context has expired at the latest, even if the process does not
  // end: one that waits for a call of this filesystem ends when that is answered.
  retention::Report Run(const Context& context, const fs::PolicyJob& job);

 private:
  void End(pid_t child) EXCLUDES_LOCK(mutex_);
  size_t ReapLeft() EXCLUDES_LOCK(mutex_);  // how many are left

  const Options options_;
  Mutex mutex_;
  std::vector<pid_t> left_ GUARDED_BY(mutex_);  // killed, and not ended yet
};

// Beside this program, in ../bin of it, or where it was installed. kNotFound.
Result<std::string> FindCairnfs();

}  // namespace cairnfs::daemon
