// Waiting for chunks that lie on hosts that do not answer just now.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "fs/filesystem.h"
#include "fs/waits.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// The waits of one request. A host that answers may lack what came meanwhile, so there may be several: not too many,
// and not for ever. Of one thread at a time.
class HostWaits {
 public:
  bool MayWait();

 private:
  unsigned count_ = 0;
  std::optional<Clock::time_point> since_;
};

// Calls `done`, which must not block, once all chunks could be read: from now on they are at hand. Waits without a lock
// or a thread; kInterrupted once the caller is being killed.
void AwaitChunks(store::ChunkStore& chunks, Waits& waits, const std::vector<Digest>& digests, const Caller& caller,
                 Done<void> done);

}  // namespace cairnfs::fs
