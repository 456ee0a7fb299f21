#include "kvnet/remote_watch.h"

namespace cairnfs::kvnet {

RemoteWatch::Scope::Scope(RemoteWatch& watch, grpc::ClientContext& context) : watch_(watch) {
  MutexLock lock(watch_.mutex_);
  watch_.context_ = &context;
  if (watch_.stopping_) context.TryCancel();
}

RemoteWatch::Scope::~Scope() {
  MutexLock lock(watch_.mutex_);
  watch_.context_ = nullptr;
}

RemoteWatch::RemoteWatch(const kv::RetryOptions& options, uint64_t after, Follow follow)
    : options_(options), follow_(std::move(follow)), after_(after), thread_([this] { Run(); }) {}

RemoteWatch::~RemoteWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    stopped_.NotifyAll();
  }
  thread_.join();
}

void RemoteWatch::Run() {
  kv::Retry retry(options_);
  for (;;) {
    if (follow_(*this, after_)) retry.NoteProgress();
    MutexLock lock(mutex_);
    if (!stopping_) stopped_.WaitFor(mutex_, retry.NextWait());
    if (stopping_) return;
  }
}

}  // namespace cairnfs::kvnet
