#include "fs/host_waits.h"

#include <atomic>
#include <memory>
#include <utility>

#include "base/thread_annotations.h"
#include "cluster/cluster_chunk_store.h"

namespace cairnfs::fs {

bool HostWaits::MayWait() {
  constexpr unsigned kCountMax = 4;
  const auto now = Clock::Now();
  if (!since_) since_ = now;
  return count_++ < kCountMax && now - *since_ < cluster::kReadWaitMax;
}

void AwaitChunks(store::ChunkStore& chunks, Waits& waits, const std::vector<Digest>& digests, const Caller& caller,
                 Done<void> done) {
  done = waits.Within(caller.context, std::move(done));
  struct Waiting {
    std::atomic<size_t> left;
    Mutex mutex;
    Status status GUARDED_BY(mutex);
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->left = digests.size();
  for (const Digest& digest : digests) {
    chunks.GetForReader(digest, [waiting, done](const Result<store::ChunkData>& data) {
      if (!data.ok()) {
        MutexLock lock(waiting->mutex);
        waiting->status = data.error();
      }
      if (--waiting->left > 0) return;
      Status status;
      {
        MutexLock lock(waiting->mutex);
        status = waiting->status;
      }
      done(status);
    });
  }
}

}  // namespace cairnfs::fs
