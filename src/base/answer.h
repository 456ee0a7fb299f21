// What a callback brings to a thread that waits for it.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <utility>

#include "base/context.h"
#include "base/result.h"

namespace cairnfs {

// Set and Wait may be called from any thread at once. Where the callback may come after nobody waits any more, both
// hold it in a shared_ptr.
template <typename T>
class Answer {
 public:
  // Once.
  void Set(T value) {
    MutexLock lock(mutex_);
    value_ = std::move(value);
    changed_.NotifyAll();
  }
  // False: the context expired first.
  bool Wait(const Context& context) {
    MutexLock lock(mutex_);
    return context.Wait(mutex_, changed_, [this] { return HasValue(); });
  }
  // REQUIRES: Wait returned true; once.
  T Take() {
    MutexLock lock(mutex_);
    assert(value_);
    return *std::exchange(value_, std::nullopt);
  }

 private:
  bool HasValue() {
    mutex_.AssertHeld();
    return value_.has_value();
  }

  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_ GUARDED_BY(mutex_);
};

// Calls `start` with a callback, and waits for the status that this is told, on whichever thread. nullopt: the context
// expired first, and the callback may come later.
template <typename Start>
std::optional<Status> AwaitStatus(const Context& context, const Start& start) {
  const auto answer = std::make_shared<Answer<Status>>();
  start([answer](const Status& status) { answer->Set(status); });
  return answer->Wait(context) ? std::optional(answer->Take()) : std::nullopt;
}

}  // namespace cairnfs
