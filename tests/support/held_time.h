// Time for unit tests that wait for what virtual_time.h does not know (gRPC, other processes): it stands still until
// the test moves it on. So no timeout of the code under test passes too early, however busy the machine is. Libraries
// keep the real time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace cairnfs {

class HeldTime final : public TimeSource {
 public:
  // REQUIRES: as of Clock::Replace, also when it ends.
  HeldTime() { Clock::Replace(this); }
  ~HeldTime() override { Clock::Replace(nullptr); }
  HeldTime(const HeldTime&) = delete;

  void Pass(Clock::duration time) { passed_ = passed_.load() + time; }

  Clock::time_point Now() override { return began_ + passed_.load(); }
  Timestamp WallTime() override { return {0, 0}; }
  // Returns early, again and again, so that a waiting thread sees that time has passed.
  void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Clock::time_point) override {
    condition.wait_for(lock, kLook);
  }

 private:
  static constexpr std::chrono::milliseconds kLook{1};
  const Clock::time_point began_{std::chrono::hours(24)};
  std::atomic<Clock::duration> passed_{};
};

}  // namespace cairnfs
