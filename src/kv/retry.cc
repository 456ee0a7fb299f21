#include "kv/retry.h"

#include <algorithm>
#include <random>

#include "base/clock.h"

namespace cairnfs::kv {

using std::chrono::microseconds;

Retry::Retry(const RetryOptions& options)
    : wait_min_(options.wait_min),
      wait_max_(options.wait_max),
      deadline_(Clock::Now() + options.give_up_after),
      patience_(options.patience),
      wait_(options.wait_min) {}

microseconds Retry::NextWait() {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto most = wait_.count();
  wait_ = std::min(wait_ * 2, wait_max_);
  return microseconds(std::uniform_int_distribution<microseconds::rep>(most / 2, most)(random));
}

bool Retry::IsOver() const { return Clock::Now() >= deadline_ || Patience::IsWaitOver(patience_.get()); }

bool Retry::Wait() {
  const microseconds wait = NextWait();
  if (Clock::Now() + wait >= deadline_) return false;
  return Patience::Sleep(patience_.get(), wait);
}

}  // namespace cairnfs::kv
