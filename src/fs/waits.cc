#include "fs/waits.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace cairnfs::fs {

namespace {

constexpr std::chrono::milliseconds kVainLookEvery{100};  // whether a wait is in vain

}  // namespace

Error CallerIsGone() { return MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited"); }

struct Waits::Wait {
  Context context;
  std::function<Error()> late;
  std::function<bool()> is_vain;  // may be null
  Done<void> done;
  bool is_answered = false;  // guarded by the owner's mutex_
  List::iterator place;      // while it is not
  // Ends first: what it calls looks at the rest.
  std::optional<Context::OnStop> on_stop;
};

void Waits::Stop() {
  if (!watcher_.joinable()) return;
  watcher_.request_stop();
  watcher_.join();
  // Who was not answered by now is not any more; what they hold goes while all else is there.
  List unanswered;
  MutexLock lock(mutex_);
  for (const std::shared_ptr<Wait>& wait : waits_) wait->is_answered = true;
  unanswered.swap(waits_);
  lock.Unlock();
}

bool Waits::TakeOut(Wait& wait) {
  MutexLock lock(mutex_);
  if (std::exchange(wait.is_answered, true)) return false;
  waits_.erase(wait.place);
  return true;
}

SyncRounds::Answer Waits::Within(const Context& context, std::function<Error()> late, Done<void> done) {
  assert(late != nullptr || context.deadline() == Clock::time_point::max());
  if (!context.MayExpire()) {
    return [done = std::move(done)](const Status& status) {
      done(status);
      return true;
    };
  }
  auto wait = std::make_shared<Wait>();
  wait->context = context;
  wait->late = std::move(late);
  wait->done = std::move(done);
  return Add(wait);
}

SyncRounds::Answer Waits::WhileNotVain(const Context& context, std::function<bool()> is_vain, Done<void> done) {
  assert(context.deadline() == Clock::time_point::max());
  auto wait = std::make_shared<Wait>();
  wait->context = context;
  wait->is_vain = std::move(is_vain);
  wait->done = std::move(done);
  return Add(wait);
}

SyncRounds::Answer Waits::Add(const std::shared_ptr<Wait>& wait) {
  {
    MutexLock lock(mutex_);
    waits_.push_front(wait);
    wait->place = waits_.begin();
    // The watcher waits for the first deadline that it knows.
    if (wait->context.deadline() != Clock::time_point::max() || wait->is_vain) {
      must_look_ = true;
      changed_.NotifyAll();
    }
  }
  // The answer is given on the watcher's thread: this one may hold what the answer needs.
  wait->on_stop.emplace(wait->context, [this] {
    MutexLock lock(mutex_);
    must_look_ = true;
    changed_.NotifyAll();
  });
  return [this, wait](const Status& status) {
    if (!TakeOut(*wait)) return false;
    std::exchange(wait->done, nullptr)(status);
    return true;
  };
}

Waits::List Waits::TakeExpired() {
  List expired;
  for (auto at = waits_.begin(); at != waits_.end();) {
    const auto wait = at++;
    if (!(*wait)->context.Expired()) continue;
    (*wait)->is_answered = true;
    expired.splice(expired.end(), waits_, wait);
  }
  return expired;
}

// Without the lock: what is asked may have locks of its own.
bool Waits::EndVain() {
  List asking;
  {
    MutexLock lock(mutex_);
    std::copy_if(waits_.begin(), waits_.end(), std::back_inserter(asking),
                 [](const std::shared_ptr<Wait>& wait) { return wait->is_vain != nullptr; });
  }
  bool any_left = false;
  for (const std::shared_ptr<Wait>& wait : asking) {
    if (!wait->is_vain()) {
      any_left = true;
    } else if (TakeOut(*wait)) {
      std::exchange(wait->done, nullptr)(MakeError(ErrorCode::kUnavailable, "what is waited for cannot come"));
    }
  }
  return any_left;
}

void Waits::Watch(const Context& context) {
  bool must_ask = false;
  MutexLock lock(mutex_);
  while (!context.IsStopped()) {
    auto first = must_ask ? Clock::Now() + kVainLookEvery : Clock::time_point::max();
    for (const std::shared_ptr<Wait>& wait : waits_) first = std::min(first, wait->context.deadline());
    context.WithDeadline(first).Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return must_look_; });
    must_look_ = false;
    List expired = TakeExpired();
    lock.Unlock();
    for (const std::shared_ptr<Wait>& wait : expired) {
      std::exchange(wait->done, nullptr)(wait->context.IsStopped() ? CallerIsGone() : wait->late());
    }
    expired.clear();
    must_ask = EndVain();
    lock.Lock();
  }
}

}  // namespace cairnfs::fs
