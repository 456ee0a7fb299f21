#include "control/call_watch.h"

#include <grpcpp/server_context.h>

#include <chrono>
#include <vector>

namespace cairnfs::control {
namespace {

constexpr auto kAskInterval = std::chrono::milliseconds(200);

}  // namespace

CallWatch::CallWatch() : thread_([this](const std::stop_token& end) { Run(end); }) {}

CallWatch::~CallWatch() = default;

CallWatch::Call::Call(CallWatch& watch, const grpc::ServerContext& call) : watch_(watch) {
  std::stop_source gone;
  wanted_ = watch.serving().WithStop(gone.get_token());
  MutexLock lock(watch.mutex_);
  entry_ = watch.calls_.insert(watch.calls_.end(), {&call, std::move(gone)});
  watch.changed_.NotifyAll();
}

CallWatch::Call::~Call() {
  MutexLock lock(watch_.mutex_);
  watch_.calls_.erase(entry_);
}

void CallWatch::Run(const std::stop_token& end) {
  const Context until_end(end);
  while (until_end.Sleep(kAskInterval)) {
    MutexLock lock(mutex_);
    const auto has_calls = [this] {
      mutex_.AssertHeld();
      return !calls_.empty();
    };
    if (!until_end.Wait(mutex_, changed_, has_calls)) return;
    // Not under the lock, which whoever is woken takes at its end.
    std::vector<std::stop_source> gone;
    for (const Watched& watched : calls_) {
      if (watched.call->IsCancelled()) gone.push_back(watched.gone);
    }
    lock.Unlock();
    for (std::stop_source& each : gone) each.request_stop();
  }
}

}  // namespace cairnfs::control
