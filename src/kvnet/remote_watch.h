// RemoteWatch: a watch over streams that break and are made anew.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <thread>

#include "base/context.h"
#include "kv/retry.h"
#include "kv/shared_store.h"

namespace cairnfs::kvnet {

class RemoteWatch final : public kv::KvWatch {
 public:
  // Called on the watch's thread, again and again: makes a stream, tells the changes that come, and returns when it
  // breaks or the context is stopped, which is when the watch is destroyed. `after`: all changes up to this revision
  // were told; it keeps that up to date. True: the stream was a good one, so the next try need not wait long.
  using Follow = std::function<bool(const Context& context, uint64_t& after)>;
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

  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace cairnfs::kvnet
