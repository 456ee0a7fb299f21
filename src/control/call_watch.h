// CallWatch: for each call of gRPC that runs a Context, which is over once its caller is gone. gRPC's synchronous calls
// do not tell of that, they can only be asked: one thread asks all of them now and then.
#pragma once

#include <list>
#include <stop_token>
#include <thread>

#include "base/context.h"
#include "base/thread_annotations.h"

namespace grpc {
class ServerContext;
}

namespace cairnfs::control {

// Any thread.
class CallWatch {
 private:
  struct Watched {
    const grpc::ServerContext* call;
    std::stop_source gone;
  };

 public:
  CallWatch();
  ~CallWatch();  // REQUIRES: no Call is left
  CallWatch(const CallWatch&) = delete;

  // Ends `serving`, and the contexts of all calls: the daemon stops.
  void Stop() { stop_.request_stop(); }
  const Context& serving() const { return serving_; }

  // One call, for as long as this lives. `watch` and `call` outlive it.
  class Call {
   public:
    Call(CallWatch& watch, const grpc::ServerContext& call);
    ~Call();
    Call(const Call&) = delete;
    // Over once the caller is gone, or the daemon stops.
    const Context& wanted() const { return wanted_; }

   private:
    CallWatch& watch_;
    std::list<Watched>::iterator entry_;
    Context wanted_;
  };

 private:
  void Run(const std::stop_token& end);

  std::stop_source stop_;
  const Context serving_{stop_.get_token()};
  Mutex mutex_;
  CondVar changed_;
  std::list<Watched> calls_ GUARDED_BY(mutex_);
  std::jthread thread_;
};

}  // namespace cairnfs::control
