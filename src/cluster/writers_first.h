// Whether programs that write go before copies for other nodes, on a host with few cores.
// docs/decisions/background-copies.md.
#pragma once

#include <chrono>
#include <optional>

#include "base/clock.h"

namespace cairnfs::cluster {

// Not thread-safe.
class WritersFirst {
 public:
  // They go first until nobody has put a chunk for `pause`, and for `time_max` at most. `pause` 0: never.
  WritersFirst(std::chrono::milliseconds pause, std::chrono::milliseconds time_max)
      : pause_(pause), time_max_(time_max) {}

  void NotePut(Clock::time_point now) { last_put_at_ = now; }
  bool AreWriting(Clock::time_point now) {
    if (now - last_put_at_ >= pause_) {
      Stop();
      return false;
    }
    if (!since_) since_ = now;
    return now - *since_ < time_max_;
  }
  void Stop() { since_.reset(); }  // copies go now, and `time_max` counts anew

 private:
  const std::chrono::milliseconds pause_, time_max_;
  Clock::time_point last_put_at_{};
  std::optional<Clock::time_point> since_;
};

}  // namespace cairnfs::cluster
