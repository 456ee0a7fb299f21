// The clock: all code takes the time from it, and sleeps and waits by it. The process has one, so that no constructor
// takes a parameter for it and the hosts of a test agree on the time. A test replaces what it shows with a time of its
// own (tests/support/virtual_time.h), which passes at once when all threads wait: so a test of a minute's timeout takes
// a moment, and a busy machine makes no timeout pass too early.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/types.h"

namespace cairnfs {

class TimeSource;

// All functions may be called from any thread at once.
class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;

  // Never goes back. Stands still while the machine is suspended.
  static time_point Now();
  // Since the machine started, with the time in which it was suspended: by Now() a suspended host would take a lease
  // that ended long ago for its own.
  static std::chrono::nanoseconds SinceBoot();
  // The time of day; somebody may set it.
  static Timestamp WallTime();
  // The processor time that this thread has used: for code that times itself. Of no replaced clock.
  static duration ThreadTime();

  static void SleepFor(duration time) { SleepUntil(Now() + time); }
  static void SleepUntil(time_point time);
  // Returns at `time` (max: never by itself), when `condition` is notified, or earlier, as any condition may. REQUIRES:
  // `lock` is held. Code outside base waits by CondVar.
  static void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, time_point time);

  // `timeout` from now as a deadline for a library that keeps time by itself (gRPC): not of a replaced clock.
  static std::chrono::system_clock::time_point LibraryDeadline(duration timeout);

  // For tests, while no other thread looks at the clock. `source`, null for the real one, stays the caller's.
  static void Replace(TimeSource* source);
};

// A time that takes the place of the real one. Its functions are called from any thread at once; see those of Clock.
class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual Clock::time_point Now() = 0;
  virtual Timestamp WallTime() = 0;
  virtual void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                         Clock::time_point time) = 0;
};

}  // namespace cairnfs
