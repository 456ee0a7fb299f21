// Runs a piece of a test in a process of its own that may have few threads.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace cairnfs {

// The limit does not bind root; so the process becomes a user that nobody is. False without root's rights.
inline bool MayLimitThreads() { return geteuid() == 0; }

// What `piece` returned there; -1 when the process did not end by itself, as after an exception that nobody caught.
inline int WithFewThreads(rlim_t thread_count_max, const std::function<int()>& piece) {
  constexpr uid_t kNobodyElse = 1'234'567;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{thread_count_max, thread_count_max};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setresuid(kNobodyElse, kNobodyElse, kNobodyElse) != 0) _exit(125);
    _exit(piece());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace cairnfs
