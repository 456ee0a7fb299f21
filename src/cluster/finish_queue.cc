#include "cluster/finish_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cairnfs::cluster {
namespace {

constexpr size_t kLookAtMin = 64;

void Drop(const PeerServer::Respond& respond) {
  respond(MakeError(ErrorCode::kUnavailable, "the caller waits no more"));
}

}  // namespace

FinishQueue::FinishQueue(unsigned thread_count)
    : thread_count_(thread_count), look_at_(kLookAtMin), threads_("cairn-finish", thread_count) {}

FinishQueue::~FinishQueue() = default;

void FinishQueue::Post(std::function<void()> run, PeerServer::Respond respond) {
  std::list<Request> gone;
  {
    MutexLock lock(mutex_);
    waiting_.push_back({std::move(run), std::move(respond)});
    if (waiting_.size() >= look_at_) {
      for (auto at = waiting_.begin(); at != waiting_.end();) {
        const auto next = std::next(at);
        if (at->respond.IsForsaken()) gone.splice(gone.end(), waiting_, at);
        at = next;
      }
      // Each is looked at a few times in all, however many there are.
      look_at_ = std::max(kLookAtMin, 2 * waiting_.size());
    }
    if (running_ < thread_count_) {
      running_++;
      threads_.Post([this] { Run(); });
    }
  }
  for (const Request& request : gone) Drop(request.respond);
}

size_t FinishQueue::waiting() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void FinishQueue::Run() {
  for (;;) {
    std::list<Request> next;
    {
      MutexLock lock(mutex_);
      if (waiting_.empty()) {
        running_--;
        look_at_ = kLookAtMin;
        return;
      }
      next.splice(next.end(), waiting_, waiting_.begin());
    }
    const Request& request = next.front();
    if (request.respond.IsForsaken()) {
      Drop(request.respond);
    } else {
      request.run();
    }
  }
}

}  // namespace cairnfs::cluster
