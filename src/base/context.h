// Context: how long a call may wait, and who may end the wait. Deadline, interruption and stop travel together as one
// value, from whoever is waited for down to whatever waits: an interrupted caller, an operator's stop and a time that
// is up all end a wait in the same way.
//
// Whoever ends waits keeps a std::stop_source, and hands its token to WithStop. A context is cheap to copy, and
// outlives nobody: what is made of it (WithDeadline, WithStop) ends with it, never after it.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairnfs {

class Context {
 public:
  // Without an end: nobody interrupts it, and no time is up.
  Context() = default;
  // Over already: for a call that is to give what is at hand, and to wait for nothing.
  static Context Over() { return Context().WithDeadline(Clock::time_point::min()); }
  // Until `stop` is requested.
  explicit Context(std::stop_token stop) : Context(Context().WithStop(std::move(stop))) {}

  // The same, and over at `time` at the latest.
  Context WithDeadline(Clock::time_point time) const;
  Context WithTimeout(Clock::duration time) const { return WithDeadline(Clock::Now() + time); }
  // The same, over only when it is stopped.
  Context WithoutDeadline() const;
  // The same, and over once `stop` is requested.
  Context WithStop(std::stop_token stop) const;
  // The same, and the context shares `stop`: whoever may request it can learn that nobody waits by it any more.
  Context WithStop(std::shared_ptr<std::stop_source> stop) const;

  // All functions may be called from any thread at once.
  Clock::time_point deadline() const { return deadline_; }  // time_point::max(): none
  bool IsStopped() const;
  bool IsLate() const { return deadline_ != Clock::time_point::max() && Clock::Now() >= deadline_; }
  bool Expired() const { return IsStopped() || IsLate(); }
  bool MayExpire() const { return stops_ != nullptr || deadline_ != Clock::time_point::max(); }

  // Waits until `is_ready` is true, which is asked with `mutex` held; whoever changes its answer notifies `changed`.
  // True: it is so on return, with `mutex` held since it was asked. False: the context expired first. Meanwhile `mutex`
  // is released. REQUIRES (unchecked): nobody requests a stop of this context while holding `mutex`.
  bool Wait(Mutex& mutex, CondVar& changed, const std::function<bool()>& is_ready) const REQUIRES_LOCK(mutex);
  // False, at once or woken: the context expired before `time` had passed.
  bool Sleep(Clock::duration time) const;

  // Calls `stopped`, once, when the context is stopped: in the constructor if it is already, else on the thread that
  // stops it. Destroying this waits for a call that runs, so whatever `stopped` locks must not be locked there. Not
  // called because of the deadline.
  class OnStop {
   public:
    OnStop(const Context& context, const std::function<void()>& stopped);
    ~OnStop();
    OnStop(const OnStop&) = delete;

   private:
    struct Callbacks;
    std::unique_ptr<Callbacks> callbacks_;  // null: nobody may stop it
  };

 private:
  struct Stops;  // those who may stop it: a list that contexts share, as they share what they were made of

  Clock::time_point deadline_ = Clock::time_point::max();
  std::shared_ptr<const Stops> stops_;  // null: nobody
};

}  // namespace cairnfs
