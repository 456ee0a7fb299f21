// Patience: how long calls to a store far away go on without an answer. It ends the calls of all threads once this host
// is told to stop, and those of one thread once nobody waits for their result. Until then each call has the time that
// its own options give it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairnfs::kv {

class Patience {
 public:
  Patience() = default;
  ~Patience();  // REQUIRES: no Call is left
  Patience(const Patience&) = delete;

  // All functions may be called from any thread at once.
  // Ends it now.
  void End();
  // From now on it ends as soon as calls have waited for `silence_max` and none was answered meanwhile. The time counts
  // from this call at the earliest. A second Limit changes nothing.
  void Limit(std::chrono::milliseconds silence_max);
  // It stays over. Cheap. A thread that sees true makes no more calls.
  bool IsOver() const { return is_over_; }

  // While it lives, the calls of this thread wait for no longer than `patience` and the store's own allow. It hides an
  // OfThread around it. Null: the calls have their own time.
  class OfThread {
   public:
    explicit OfThread(Patience* patience);
    explicit OfThread(Patience& patience) : OfThread(&patience) {}
    ~OfThread();
    OfThread(const OfThread&) = delete;

   private:
    Patience* const around_;
  };
  // The patience of this thread, for threads that work for it meanwhile; null: none.
  static Patience* Current();
  // In the functions below `patience` is the store's and may be null. That of the thread counts as well.
  static bool IsWaitOver(const Patience* patience);
  // False, at once or as soon as it happens: it is over.
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
  // A call that waits for the store's answer. `give_up` is called when the patience is over, in the constructor when it
  // is over already. It must make the waiting end, and not wait itself. The destructor waits for a `give_up` that runs:
  // so do not hold a lock there that `give_up` takes.
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
