// Waiting in tests for what comes about by itself.
#pragma once

#include <chrono>
#include <thread>

namespace cairnfs {

// Whether `condition` becomes true; a time that no machine needs.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::milliseconds within = std::chrono::seconds(60)) {
  const auto until = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace cairnfs
