// Waiting in tests for what comes about by itself.
#pragma once

#include <algorithm>
#include <chrono>
#include <future>

#include "base/clock.h"

namespace cairnfs {

// Whether `condition` becomes true; a time that no machine needs.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::milliseconds within = std::chrono::seconds(60)) {
  const auto until = Clock::Now() + within;
  Clock::duration pause = std::chrono::milliseconds(1);
  while (!condition()) {
    if (Clock::Now() >= until) return false;
    Clock::SleepFor(pause);
    pause = std::min<Clock::duration>(pause * 2, std::chrono::milliseconds(100));
  }
  return true;
}

// Whether `future`, of std, has its result within that time.
template <typename Future>
bool IsReadyWithin(Future& future, Clock::duration time) {
  const auto is_ready = [&future] { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  return Eventually(is_ready, std::chrono::ceil<std::chrono::milliseconds>(time));
}

}  // namespace cairnfs
