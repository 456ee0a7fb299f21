// Waits: answers that come late, and callers that do not wait for them any longer.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

class Waits {
 public:
  Waits() : watcher_([this] { Watch(); }) {}
  ~Waits() { Stop(); }
  Waits(const Waits&) = delete;

  // Ends the thread that watches, and forgets who was not answered. REQUIRES: the rounds have ended. Not on that
  // thread.
  void Stop();

  // All functions may be called from any thread at once.
  // `done` is called once: with what the returned function is given, with kInterrupted once the caller is being killed,
  // or at the deadline with what `late` says then, whichever comes first.
  SyncRounds::Answer UnlessCancelled(const Caller& caller, Clock::time_point deadline, std::function<Error()> late,
                                     Done<void> done);
  SyncRounds::Answer UnlessKilled(const Caller& caller, Done<void> done);  // without a deadline

 private:
  struct Wait {
    // Held while `cancelled` is asked, so that the request, which ends with the answer, is there as long.
    Mutex mutex;
    bool answered GUARDED_BY(mutex) = false;
    std::function<bool()> cancelled;
    Clock::time_point deadline;
    std::function<Error()> late;
    Done<void> done;
  };
  void Watch();

  Mutex mutex_;
  CondVar wake_;
  std::vector<std::shared_ptr<Wait>> waits_ GUARDED_BY(mutex_);
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  bool is_watched_ GUARDED_BY(mutex_) = false;  // the watcher looks at them soon without being woken
  std::thread watcher_;
};

}  // namespace cairnfs::fs
