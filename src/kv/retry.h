// How calls to a store far away, and transactions that conflict, are tried again.
#pragma once

#include <chrono>
#include <memory>

#include "base/clock.h"
#include "base/context.h"
#include "base/result.h"
#include "kv/answer_watch.h"

namespace cairnfs::kv {

struct RetryOptions {
  std::chrono::milliseconds give_up_after{60'000};  // of a call, tries and waits together
  std::chrono::milliseconds try_timeout{5'000};     // of one try of a commit or of a lease's grant
  std::chrono::microseconds wait_min{20'000};       // before the second try; doubled for each after it
  std::chrono::microseconds wait_max{1'000'000};
  std::shared_ptr<AnswerWatch> answers;  // of the store's calls together; null: each has its own time alone

  // `context`, and over as well once the store's calls are to end.
  Context Within(const Context& context) const;
};

// The tries of one call. Of one thread.
class Retry {
 public:
  Retry(const Context& context, const RetryOptions& options);
  // Waits before the next try, for a random time, so that many clients do not come at once. False, at once, when the
  // time is over, and as soon as the context expires.
  bool Wait();
  // For as long as the call may take: the context that it was given, the store's, and the time of the options.
  const Context& context() const { return context_; }
  // The time that Wait would sleep, for a caller that sleeps on a condition of its own.
  std::chrono::microseconds NextWait();
  // A try went well: the next wait is short again.
  void NoteProgress() { wait_ = wait_min_; }

 private:
  const std::chrono::microseconds wait_min_, wait_max_;
  const Context context_;
  std::chrono::microseconds wait_;
};

// Calls `try_once(context)` again and again, until its Result or Status is another one than kUnavailable, or the time
// is over. Returns the last one.
template <typename Try>
auto TryUntilAnswered(const Context& context, const RetryOptions& options, const Try& try_once) {
  Retry retry(context, options);
  for (;;) {
    auto result = try_once(retry.context());
    if (result.ok() || result.error().code != ErrorCode::kUnavailable || !retry.Wait()) return result;
  }
}

}  // namespace cairnfs::kv
