#include "cluster/subscribers.h"

namespace cairnfs::cluster {

std::shared_ptr<void> Subscribers::Add(std::function<void(const ViewPtr&)> changed) {
  auto subscriber = std::make_shared<Subscriber>();
  {
    MutexLock lock(subscriber->calling);
    subscriber->changed = std::move(changed);
  }
  MutexLock lock(mutex_);
  std::erase_if(subscribers_, [](const std::weak_ptr<Subscriber>& old) { return old.expired(); });
  subscribers_.push_back(subscriber);
  // The handle ends the subscription; the thread may hold the subscriber a little longer.
  return {subscriber.get(), [subscriber](void*) {
            MutexLock call(subscriber->calling);
            subscriber->changed = nullptr;
          }};
}

void Subscribers::Tell() {
  {
    MutexLock lock(mutex_);
    if (is_due_) return;
    is_due_ = true;
  }
  thread_.Post([this] { TellNow(); });
}

void Subscribers::TellNow() {
  std::vector<std::weak_ptr<Subscriber>> subscribers;
  {
    MutexLock lock(mutex_);
    is_due_ = false;  // a change from here on is told by another call
    subscribers = subscribers_;
  }
  const ViewPtr view = view_();
  for (const std::weak_ptr<Subscriber>& weak : subscribers) {
    const std::shared_ptr<Subscriber> subscriber = weak.lock();
    if (subscriber == nullptr) continue;
    MutexLock call(subscriber->calling);
    if (subscriber->changed) subscriber->changed(view);
  }
}

}  // namespace cairnfs::cluster
