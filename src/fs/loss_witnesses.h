// LossWitnesses: who is still to be told that this host lost closed bytes.
//
// What was closed and is not durable yet goes with the host's session, or cannot be made durable, and no descriptor may
// be left that an error could come from. Who lived through that may rely on these bytes, and must not go on to remove
// what was to be kept until they are there. So a process, and the session of processes that it belongs to (setsid(2): a
// job's shell, whose next command may be the one that removes an older checkpoint), is told once, by the first of its
// calls that makes something durable, or that removes, renames, replaces or cuts something off. What was started since
// the loss is not told.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::fs {

// What /proc says of a process.
struct ProcessStart {
  pid_t session = 0;
  uint64_t started_ticks = 0;  // since boot
};
// Of the text of a /proc/PID/stat; nullopt: it is none.
std::optional<ProcessStart> ParseProcessStat(const std::string& text);

class LossWitnesses {
 public:
  // All functions may be called from any thread at once.
  // Closed bytes are lost as of now.
  void NoteLoss();
  // kIo: the process of that thread, or its session, is told now. `thread` is as a FUSE request names it; all that
  // cannot be seen (0: of another pid namespace) count as one process. Reads /proc once there was a loss.
  Status Tell(uint32_t thread);

 private:
  std::atomic<bool> has_loss_{false};
  Mutex mutex_;
  uint64_t lost_ticks_ GUARDED_BY(mutex_) = 0;  // of the last loss, since boot
  std::set<pid_t> told_processes_ GUARDED_BY(mutex_);
  std::set<pid_t> known_sessions_ GUARDED_BY(mutex_);  // told, or begun since
};

}  // namespace cairnfs::fs
