// SignalWaiter: what SIGTERM and SIGINT do to the daemon, while it starts and once it serves.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/thread_annotations.h"

namespace cairnfs::daemon {

// Waits for the signals on a thread of its own; they are blocked in all others. The functions that it is given are
// called on that thread.
class SignalWaiter {
 public:
  // Blocks the signals. Call before any thread starts.
  SignalWaiter();
  ~SignalWaiter() { End(); }
  SignalWaiter(const SignalWaiter&) = delete;
  SignalWaiter& operator=(const SignalWaiter&) = delete;

  // From here on a signal ends the process at once, as if it were not blocked. While the daemon starts, and perhaps
  // waits for a metadata store that does not answer, nothing has to be made durable. REQUIRES (unchecked): the
  // process has no thread that must not be killed.
  void Start();
  // Sets the function that is called before a signal ends the process.
  void WhileStarting(std::function<void()> before_end);
  // From here on a signal waits for OnStop: there is about to be a mount, which must not be left behind.
  void Hold();
  // Sets the function that a signal calls from now on. A signal that came meanwhile calls it too, at once.
  void OnStop(std::function<void()> on_stop);
  // After it nothing is called any more; the signals stay blocked.
  void End();

 private:
  void OnSignal(int signal);

  Mutex mutex_;
  bool is_held_ GUARDED_BY(mutex_) = false;
  bool was_asked_ GUARDED_BY(mutex_) = false;
  std::function<void()> before_end_ GUARDED_BY(mutex_);
  std::function<void()> on_stop_ GUARDED_BY(mutex_);
  sigset_t signals_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace cairnfs::daemon
