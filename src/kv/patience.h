// Patience: how long the calls of a store far away go on without an answer: those of all threads once this host is told
// to stop, those of one thread once nobody waits for what it does. Until then each call has the time that its own
// options give it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <thread>

#include "base/thread_annotations.h"

namespace cairnfs::kv {

class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  Patience() = default;
  ~Patience();  // REQUIRES: no Call is left
  Patience(const Patience&) = delete;

  // All functions may be called from any thread at once.
  // It is over now.
  void End();
  // From now on it is over as soon as calls have waited for `silence_max`, counted from this one at the earliest, and
  // none was answered meanwhile. A second Limit changes nothing.
  void Limit(std::chrono::milliseconds silence_max);
  // For good. Cheap. Whoever makes calls makes none any more.
  bool IsOver() const { return is_over_; }

  // While it lives, this thread's calls wait for no longer than `patience`, beside the store's own, and not for that of
  // an OfThread around it. Null: they have their own time.
  class OfThread {
   public:
    explicit OfThread(Patience* patience);
    explicit OfThread(Patience& patience) : OfThread(&patience) {}
    ~OfThread();
    OfThread(const OfThread&) = delete;

   private:
    Patience* const around_;
  };
  // That of this thread, for threads that work for it meanwhile; null: none.
  static Patience* Current();
  // Of those below, `patience` is the store's and may be null; that of the thread counts as well.
  static bool IsWaitOver(const Patience* patience);
  // False, at once or woken: it is over.
  static bool Sleep(Patience* patience, std::chrono::microseconds time);

 private:
  // `give_up` is called once the patience is over.
  class Entry {
   public:
    Entry(Patience* patience, const std::function<void()>& give_up);
    ~Entry();
    Entry(const Entry&) = delete;

   private:
    Patience* const patience_;
    std::list<std::function<void()>>::iterator place_;
  };

 public:
  // One that waits for the store's answer: `give_up` is called when the patience is over, in the constructor when it is
  // already. It must make the waiting end, and not wait itself. Destroying it waits for a `give_up` that runs, so
  // whatever `give_up` locks must not be locked there.
  class Call {
   public:
    Call(Patience* patience, const std::function<void()>& give_up);
    ~Call();
    Call(const Call&) = delete;
    void NoteAnswer();

   private:
    Patience* const patience_;
    const Entry at_store_, at_thread_;
  };

 private:
  void Run(Clock::time_point since, std::chrono::milliseconds silence_max);
  void EndLocked() REQUIRES_LOCK(mutex_);

  std::atomic<bool> is_over_{false};

  Mutex mutex_;
  CondVar changed_;
  bool is_limited_ GUARDED_BY(mutex_) = false;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> unanswered_since_ GUARDED_BY(mutex_);  // also after the calls have failed
  std::list<std::function<void()>> entries_ GUARDED_BY(mutex_);
  size_t calls_ GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // set by the first Limit
};

}  // namespace cairnfs::kv
