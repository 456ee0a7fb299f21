#include "kvnet/remote_watch.h"

#include "base/start_thread.h"

namespace cairnfs::kvnet {

Result<std::unique_ptr<kv::KvWatch>> RemoteWatch::Start(const kv::RetryOptions& options, uint64_t after,
                                                        Follow follow) {
  std::unique_ptr<RemoteWatch> watch(new RemoteWatch(options, after, std::move(follow)));
  CAIRNFS_ASSIGN_OR_RETURN(watch->thread_, StartThread("a watch", [watch = watch.get()] { watch->Run(); }));
  return std::unique_ptr<kv::KvWatch>(std::move(watch));
}

RemoteWatch::~RemoteWatch() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void RemoteWatch::Run() {
  const Context context(stop_.get_token());
  kv::Retry retry(context, options_);  // it goes on for ever: only the waits are the retry's
  do {
    if (follow_(context, after_)) retry.NoteProgress();
  } while (context.Sleep(retry.NextWait()));
}

}  // namespace cairnfs::kvnet
