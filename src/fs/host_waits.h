// Waiting for chunks on hosts that do not answer at present.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "fs/filesystem.h"
#include "fs/waits.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// Bounds how often and how long one request waits. It may have to wait more than once: a host that is back may lack
// what came meanwhile. One thread at a time.
class HostWaits {
 public:
  bool MayWait();

 private:
  unsigned count_ = 0;
  std::optional<Clock::time_point> since_;
};

// Fetches all of the chunks, then calls `done`, which must not block. Holds no lock and no thread meanwhile.
// kInterrupted: the caller is being killed.
void AwaitChunks(store::ChunkStore& chunks, Waits& waits, const std::vector<Digest>& digests, const Caller& caller,
                 Done<void> done);

}  // namespace cairnfs::fs
