// How calls to a store far away, and transactions that conflict, are tried again.
#pragma once

#include <chrono>
#include <memory>

#include "base/clock.h"
#include "kv/patience.h"

namespace cairnfs::kv {

struct RetryOptions {
  std::chrono::milliseconds give_up_after{60'000};  // of a call, tries and waits together
  std::chrono::milliseconds try_timeout{5'000};     // of one try of a commit or of a lease's grant
  std::chrono::microseconds wait_min{20'000};       // before the second try; doubled for each after it
  std::chrono::microseconds wait_max{1'000'000};
  std::shared_ptr<Patience> patience;  // of the store's calls together; null: each has its own time alone
};

// The tries of one call. Of one thread.
class Retry {
 public:
  explicit Retry(const RetryOptions& options);
  // Waits before the next try, for a random time, so that many clients do not come at once. False, at once, when the
  // time is over; and as soon as the patience is over, or that of this thread (Patience::OfThread).
  bool Wait();
  // Whether the next Wait would return false for certain.
  bool IsOver() const;
  // The time that Wait would sleep, for a caller that sleeps on a condition of its own.
  std::chrono::microseconds NextWait();
  // A try went well: the next wait is short again.
  void NoteProgress() { wait_ = wait_min_; }

 private:
  const std::chrono::microseconds wait_min_, wait_max_;
  const Clock::time_point deadline_;
  const std::shared_ptr<Patience> patience_;
  std::chrono::microseconds wait_;
};

}  // namespace cairnfs::kv
