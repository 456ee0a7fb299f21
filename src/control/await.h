// Waiting for the filesystem's answers, in calls of the daemon's services.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/answer.h"
#include "base/context.h"
#include "control.pb.h"
#include "fs/maintenance.h"

namespace cairnfs::control {

inline constexpr auto kTickInterval = std::chrono::milliseconds(200);

// Calls `start` with a Done and waits for it while the answer is wanted; the operation then goes on by itself, unless
// `start` gave it a way to be stopped. Calls `on_tick`, if there is one, now and then.
template <typename T>
Result<T> Await(const std::function<void(fs::Done<T>)>& start, const Context& wanted,
                const std::function<void()>& on_tick = {}) {
  const auto answer = std::make_shared<Answer<Result<T>>>();
  start([answer](Result<T> result) { answer->Set(std::move(result)); });
  while (!answer->Wait(on_tick ? wanted.WithTimeout(kTickInterval) : wanted)) {
    // A client that went away does not read this.
    if (wanted.Expired()) return MakeError(ErrorCode::kInterrupted, "the daemon is stopping");
    on_tick();
  }
  return answer->Take();
}

// Waits until the inode, and what lies below it, is durable.
inline Status WaitFor(fs::FileSystem& filesystem, const WaitRequest& request, const Context& wanted) {
  fs::Caller caller;
  caller.context = wanted;
  return filesystem.maintenance().SyncBelow(InodeId{request.inode()}, caller);
}

inline std::string CannotMakeDurable(const WaitRequest& request) {
  return "cannot make " + request.path() + " durable";
}

}  // namespace cairnfs::control
