#include "base/context.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <utility>

namespace cairnfs {

struct Context::Stops {
  std::stop_token stop;
  std::shared_ptr<const Stops> others;
  std::shared_ptr<std::stop_source> source;  // null: not shared
};

Context Context::WithDeadline(Clock::time_point time) const {
  Context context = *this;
  context.deadline_ = std::min(deadline_, time);
  return context;
}

Context Context::WithoutDeadline() const {
  Context context = *this;
  context.deadline_ = Clock::time_point::max();
  return context;
}

Context Context::WithStop(std::stop_token stop) const {
  Context context = *this;
  if (stop.stop_possible()) context.stops_ = std::make_shared<Stops>(Stops{std::move(stop), stops_, nullptr});
  return context;
}

Context Context::WithStop(std::shared_ptr<std::stop_source> stop) const {
  Context context = *this;
  std::stop_token token = stop->get_token();
  context.stops_ = std::make_shared<Stops>(Stops{std::move(token), stops_, std::move(stop)});
  return context;
}

bool Context::IsStopped() const {
  for (const Stops* at = stops_.get(); at != nullptr; at = at->others.get()) {
    if (at->stop.stop_requested()) return true;
  }
  return false;
}

bool Context::Wait(Mutex& mutex, CondVar& changed, const std::function<bool()>& is_ready) const {
  while (!is_ready()) {
    if (Expired()) return false;
    mutex.Unlock();
    {
      // Locks, so that the wake-up does not come between a look and the wait.
      const OnStop wake(*this, [&mutex, &changed] {
        MutexLock lock(mutex);
        changed.NotifyAll();
      });
      MutexLock lock(mutex);
      while (!is_ready() && !Expired()) changed.WaitUntil(mutex, deadline_);
    }
    // What was ready may be another's by now.
    mutex.Lock();
  }
  return true;
}

bool Context::Sleep(Clock::duration time) const {
  Mutex mutex;
  CondVar never;
  const auto until = Clock::Now() + time;
  MutexLock lock(mutex);
  WithDeadline(until).Wait(mutex, never, [] { return false; });
  return Clock::Now() >= until && !Expired();
}

struct Context::OnStop::Callbacks {
  Callbacks(std::function<void()> function, std::shared_ptr<const Stops> list_of_stops)
      : stopped(std::move(function)), stops(std::move(list_of_stops)) {}
  std::function<void()> stopped;
  const std::shared_ptr<const Stops> stops;  // so that whoever may stop it knows that somebody waits
  std::atomic<bool> is_called = false;
  std::list<std::stop_callback<std::function<void()>>> list;
};

Context::OnStop::OnStop(const Context& context, const std::function<void()>& stopped) {
  if (context.stops_ == nullptr) return;
  callbacks_ = std::make_unique<Callbacks>(stopped, context.stops_);
  for (const Stops* at = context.stops_.get(); at != nullptr; at = at->others.get()) {
    callbacks_->list.emplace_back(at->stop, [callbacks = callbacks_.get()] {
      if (!callbacks->is_called.exchange(true)) callbacks->stopped();
    });
  }
}

Context::OnStop::~OnStop() = default;

}  // namespace cairnfs
