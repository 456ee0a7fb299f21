// StopRecord: what a stop leaves, in the log and in LOCK, whichever thread comes to note it.
#pragma once

#include "base/context.h"
#include "base/thread_annotations.h"
#include "daemon/directory_lock.h"
#include "daemon/stop_deadline.h"

namespace cairnfs::daemon {

// All functions: any thread. A stuck disk may hold each of them up for ever, but for EndProcess.
class StopRecord {
 public:
  explicit StopRecord(DirectoryLock& lock) : lock_(lock) {}  // which outlives it
  StopRecord(const StopRecord&) = delete;

  // The stop has begun.
  void NoteStopping();
  // Something is not durable. In the log first: a disk may take that, and not the sync of LOCK. Once.
  void NoteLost(const StopOutcome& outcome);
  void NoteClean();
  // Notes the outcome on a thread of its own, lets `meanwhile` tell others, and ends the process when that is noted, or
  // the context has expired.
  [[noreturn]] void EndProcess(const Context& until, const StopOutcome& outcome,
                               const std::function<void()>& meanwhile = {});

 private:
  DirectoryLock& lock_;
  Mutex mutex_;
  bool is_lost_ GUARDED_BY(mutex_) = false;
  bool is_over_ GUARDED_BY(mutex_) = false;  // LOCK has the outcome
};

}  // namespace cairnfs::daemon
