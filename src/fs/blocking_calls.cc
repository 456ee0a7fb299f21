#include "fs/blocking_calls.h"

#include <chrono>
#include <utility>
#include <vector>

namespace cairnfs::fs {
namespace {

// Calls that take less are never asked about.
constexpr std::chrono::milliseconds kLookInterval{100};

}  // namespace

BlockingCalls::BlockingCalls(const std::string& name, unsigned thread_count)
    : queue_(std::make_unique<TaskQueue>(name, thread_count)), watcher_([this] { Watch(); }) {}

BlockingCalls::~BlockingCalls() { Stop(); }

void BlockingCalls::Stop() {
  if (!watcher_.joinable()) return;
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  queue_.reset();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    first_.NotifyAll();
    stop_.NotifyAll();
  }
  watcher_.join();
}

bool BlockingCalls::Post(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (is_closed_) return false;
  queue_->Post(std::move(task));
  return true;
}

void BlockingCalls::Post(std::function<void()> task, std::function<bool()> is_killed,
                         std::function<void(const Error&)> refused) {
  auto call = std::make_shared<Call>();
  call->task = std::move(task);
  call->is_killed = std::move(is_killed);
  call->refused = std::move(refused);
  MutexLock lock(mutex_);
  if (is_closed_) {
    lock.Unlock();
    return call->refused(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping"));
  }
  if (calls_.empty()) first_.NotifyAll();
  calls_.push_front(call);
  call->place = calls_.begin();
  queue_->Post([this, call = std::move(call)] { Run(*call); });
}

void BlockingCalls::Run(Call& call) {
  {
    MutexLock lock(mutex_);
    if (call.state == Call::State::kRefused) return;
    call.state = Call::State::kRunning;
  }
  {
    const kv::Patience::OfThread patience(call.patience);
    call.task();
  }
  MutexLock lock(mutex_);
  calls_.erase(call.place);
}

void BlockingCalls::LetGo(Call& call) {
  bool is_running = false;
  {
    MutexLock lock(mutex_);
    is_running = call.state == Call::State::kRunning;
    if (!is_running) {
      call.state = Call::State::kRefused;
      calls_.erase(call.place);
    }
  }
  // Where it has ended meanwhile, nobody waits with its patience.
  if (is_running) return call.patience.End();
  call.refused(MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited"));
}

void BlockingCalls::Watch() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (calls_.empty()) {
      first_.Wait(mutex_);
      continue;
    }
    std::vector<std::shared_ptr<Call>> old;
    for (const std::shared_ptr<Call>& call : calls_) {
      if (std::exchange(call->is_old, true) && !call->patience.IsOver()) old.push_back(call);
    }
    lock.Unlock();
    for (const std::shared_ptr<Call>& call : old) {
      if (call->is_killed()) LetGo(*call);
    }
    old.clear();
    lock.Lock();
    if (!stopping_) stop_.WaitFor(mutex_, kLookInterval);
  }
}

}  // namespace cairnfs::fs
