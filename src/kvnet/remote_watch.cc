#include "kvnet/remote_watch.h"

#include "kv/start_thread.h"

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

Result<std::unique_ptr<kv::KvWatch>> RemoteWatch::Start(const kv::RetryOptions& options, uint64_t after,
                                                        Follow follow) {
  std::unique_ptr<RemoteWatch> watch(new RemoteWatch(options, after, std::move(follow)));
  CAIRNFS_ASSIGN_OR_RETURN(watch->thread_, kv::StartThread("a watch", [watch = watch.get()] { watch->Run(); }));
  return std::unique_ptr<kv::KvWatch>(std::move(watch));
}

RemoteWatch::~RemoteWatch() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    stopped_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
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
