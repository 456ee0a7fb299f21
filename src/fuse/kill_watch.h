// KillWatch: for each request a Context that is over once its caller is being killed. The kernel sends FUSE_INTERRUPT
// for any signal, also a SIGALRM that is handled, and only once for each request. So one thread looks at the callers of
// those requests that were interrupted, whether one of them has a SIGKILL pending.
#pragma once

#include <fuse_lowlevel.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <thread>

#include "base/context.h"

namespace cairnfs::fuse {

// Any thread.
class KillWatch {
 public:
  // `is_killed`: whether this thread is being killed.
  explicit KillWatch(std::function<bool(pid_t thread)> is_killed);
  KillWatch(const KillWatch&) = delete;

  // REQUIRES (unchecked): the request is not answered yet; its user data is a Session with this watch. A later
  // fuse_req_interrupt_func for it ends the watching.
  Context ContextOf(fuse_req_t request);
  // The same for what is no request of libfuse: `id` of the context is for NoteInterrupted.
  Context MakeContext(pid_t thread, void** id);
  // A signal came for the caller. Unknown ids are those of requests for which nobody waits any more. An id may be given
  // again once nobody waits: then a caller is looked at for nothing.
  void NoteInterrupted(const void* id);

 private:
  struct State;
  static void Run(State& state, const Context& context);

  const std::shared_ptr<State> state_;  // its contexts may outlive the watch
  std::jthread thread_;
};

}  // namespace cairnfs::fuse
