// Waits: answers that come late, and callers that do not wait for them any longer.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <stop_token>
#include <thread>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

// kInterrupted: what is given up once nobody waits for it any more.
Error CallerIsGone();

class Waits {
 public:
  Waits() : watcher_([this](const std::stop_token& stop) { Watch(Context(stop)); }) {}
  ~Waits() { Stop(); }
  Waits(const Waits&) = delete;

  // Ends the thread that watches, and forgets who was not answered. REQUIRES (unchecked): the rounds have ended. Not on
  // that thread.
  void Stop();

  // Any thread. `done` is called once: with what the returned function is given; or, once the context has expired, with
  // CallerIsGone where it was stopped, and with what `late` says where it is late. REQUIRES: a context with a deadline
  // has `late`.
  SyncRounds::Answer Within(const Context& context, std::function<Error()> late, Done<void> done);
  // Calls `done` too, with kUnavailable, once `is_vain` says that there is nothing to wait for. That is asked ten times
  // a second, on a thread of its own.
  SyncRounds::Answer WhileNotVain(const Context& context, std::function<bool()> is_vain, Done<void> done);
  // Of one without a deadline.
  SyncRounds::Answer Within(const Context& context, Done<void> done) { return Within(context, {}, std::move(done)); }

 private:
  struct Wait;
  using List = std::list<std::shared_ptr<Wait>>;
  SyncRounds::Answer Add(const std::shared_ptr<Wait>& wait);
  void Watch(const Context& context);
  // Those whose time is up or who were stopped; they are not in the list any more.
  List TakeExpired() REQUIRES_LOCK(mutex_);
  // Answers those that wait in vain. Returns whether any is left that may come to.
  bool EndVain();
  // Whether it was in the list: who takes it out answers it.
  bool TakeOut(Wait& wait);

  Mutex mutex_;
  CondVar changed_;
  List waits_ GUARDED_BY(mutex_);  // not answered yet
  bool must_look_ GUARDED_BY(mutex_) = false;
  std::jthread watcher_;
};

}  // namespace cairnfs::fs
