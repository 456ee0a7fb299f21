#include "kv/retry.h"

#include <algorithm>
#include <random>

#include "base/clock.h"

namespace cairnfs::kv {

using std::chrono::microseconds;

Context RetryOptions::Within(const Context& context) const {
  return answers == nullptr ? context : context.WithStop(answers->ended());
}

Retry::Retry(const Context& context, const RetryOptions& options)
    : wait_min_(options.wait_min),
      wait_max_(options.wait_max),
      context_(options.Within(context).WithTimeout(options.give_up_after)),
      wait_(options.wait_min) {}

microseconds Retry::NextWait() {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto most = wait_.count();
  wait_ = std::min(wait_ * 2, wait_max_);
  return microseconds(std::uniform_int_distribution<microseconds::rep>(most / 2, most)(random));
}

bool Retry::Wait() {
  const microseconds wait = NextWait();
  if (context_.deadline() - Clock::Now() <= wait) return false;
  return context_.Sleep(wait);
}

}  // namespace cairnfs::kv
