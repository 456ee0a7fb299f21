// Subscribers: who wants to be told of the newest view, on a thread that is theirs. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/types.h"

namespace cairnfs::cluster {

class Subscribers {
 public:
  // `view` gives the newest one. Throws std::system_error when the system lets no more threads start.
  explicit Subscribers(std::function<ViewPtr()> view) : view_(std::move(view)), thread_("cluster-view", 1) {}

  // As Membership::OnChange. The handle may outlive this.
  std::shared_ptr<void> Add(std::function<void(const ViewPtr&)> changed);
  // Has everybody told, if that is not due already.
  void Tell();

 private:
  struct Subscriber {
    Mutex calling;
    std::function<void(const ViewPtr&)> changed GUARDED_BY(calling);  // empty: ended
  };
  void TellNow();

  const std::function<ViewPtr()> view_;
  Mutex mutex_;
  std::vector<std::weak_ptr<Subscriber>> subscribers_ GUARDED_BY(mutex_);
  bool is_due_ GUARDED_BY(mutex_) = false;
  TaskQueue thread_;  // last: it ends first
};

}  // namespace cairnfs::cluster
