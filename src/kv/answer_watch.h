// AnswerWatch: ends the calls to a store far away once this host is stopping and the store has been silent for long.
// Until then each call has the time that its own options and its context give it.
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/clock.h"
#include "base/context.h"
#include "base/thread_annotations.h"

namespace cairnfs::kv {

class AnswerWatch {
 public:
  AnswerWatch() = default;
  ~AnswerWatch();  // REQUIRES (unchecked): no Call is left
  AnswerWatch(const AnswerWatch&) = delete;

  // All functions may be called from any thread at once.
  // Stopped once the calls are to end, and for ever after.
  std::stop_token ended() const { return end_.get_token(); }
  // Ends them now.
  void End() { end_.request_stop(); }
  // From now on ends them as soon as calls have waited for `silence_max` and none was answered meanwhile. The time
  // counts from this call at the earliest. A second one changes nothing.
  void EndAfterSilence(std::chrono::milliseconds silence_max);

  // A call that waits for the store's answer. `watch` may be null: nobody counts it.
  class Call {
   public:
    explicit Call(AnswerWatch* watch);
    ~Call();
    Call(const Call&) = delete;
    void NoteAnswer();

   private:
    AnswerWatch* const watch_;
  };

 private:
  void Run(const Context& context, Clock::time_point since, std::chrono::milliseconds silence_max);

  std::stop_source end_;
  std::stop_source destroyed_;

  Mutex mutex_;
  CondVar changed_;
  std::optional<Clock::time_point> unanswered_since_ GUARDED_BY(mutex_);  // also after the calls have failed
  size_t calls_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // set by the first EndAfterSilence
  bool is_limited_ GUARDED_BY(mutex_) = false;
};

}  // namespace cairnfs::kv
