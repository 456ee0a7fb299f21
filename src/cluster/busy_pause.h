// How to go on with a node that says that it has enough to do (kBusy): it is left alone for a while, longer each time
// that it says so again. Then one message finds out; while it takes them, it gets twice as many at once each time.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

#include "base/clock.h"

namespace cairnfs::cluster {

// Not thread-safe.
class BusyPause {
 public:
  // `running`: messages that are on their way to it.
  bool MaySend(Clock::time_point now, unsigned running) const { return now >= until_ && running < at_once_max_; }

  // It has refused a message. What was sent together is refused together, and counts once.
  void NoteBusy(Clock::time_point now) {
    at_once_max_ = 1;
    if (now < until_) return;
    pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
    // Those that were refused at the same time do not come back at the same time.
    static thread_local std::minstd_rand random(std::random_device{}());
    until_ = now + Clock::duration(
                       std::uniform_int_distribution<Clock::duration::rep>(pause_.count() / 2, pause_.count())(random));
  }

  void NoteTaken() {
    pause_ = Clock::duration::zero();
    if (at_once_max_ < kUnlimited) at_once_max_ = at_once_max_ < kAtOnceMax ? 2 * at_once_max_ : kUnlimited;
  }

 private:
  static constexpr Clock::duration kPauseMin = std::chrono::milliseconds(50);
  static constexpr Clock::duration kPauseMax = std::chrono::seconds(1);
  static constexpr unsigned kAtOnceMax = 16;  // a window full of messages
  static constexpr unsigned kUnlimited = std::numeric_limits<unsigned>::max();

  Clock::time_point until_{};
  Clock::duration pause_{};
  unsigned at_once_max_ = kUnlimited;
};

}  // namespace cairnfs::cluster
