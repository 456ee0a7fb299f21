// RemoteWatch: a watch over streams that break and are made anew. Room-internal: gRPC is in here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <thread>

#include "base/thread_annotations.h"
#include "kv/retry.h"
#include "kv/shared_store.h"

namespace cairnfs::kvnet {

class RemoteWatch final : public kv::KvWatch {
 public:
  // While one lives, destroying the watch cancels the call.
  class Scope {
   public:
    Scope(RemoteWatch& watch, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;

   private:
    RemoteWatch& watch_;
  };

  // Called on the watch's thread, again and again: makes a stream, tells the changes that come, and returns when it
  // breaks. Each of its calls has a Scope. `after`: all changes up to this revision were told; it keeps that up to
  // date. True: the stream was a good one, so the next try need not wait long.
  using Follow = std::function<bool(RemoteWatch& watch, uint64_t& after)>;
  // kUnavailable: no thread can be started.
  static Result<std::unique_ptr<kv::KvWatch>> Start(const kv::RetryOptions& options, uint64_t after, Follow follow);
  ~RemoteWatch() override;

 private:
  RemoteWatch(const kv::RetryOptions& options, uint64_t after, Follow follow)
      : options_(options), follow_(std::move(follow)), after_(after) {}
  void Run();

  const kv::RetryOptions options_;
  const Follow follow_;
  uint64_t after_;  // of the thread

  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ GUARDED_BY(mutex_) = nullptr;
  std::thread thread_;
};

}  // namespace cairnfs::kvnet
