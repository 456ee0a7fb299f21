// The shared store as a host of a cluster writes to it: no transaction of a session that is over changes anything.
#pragma once

#include <chrono>
#include <memory>

#include "cluster/membership.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

struct FencedStoreOptions {
  // How long a Commit waits at most while it is not known whether the session lives; then kUnavailable, and it did not
  // run.
  std::chrono::milliseconds wait_max{120'000};
};

// A KvStore whose commits also compare this host's session: kStale when that is lost, whatever the caller did. Reads
// pass through. When the store turns out to have gone back to an older state (a backup was restored), the session is
// lost, too, and when it can never be told whether a commit ran. Both outlive it.
std::unique_ptr<kv::KvStore> MakeFencedStore(kv::SharedKvStore& store, cluster::Membership& membership,
                                             const FencedStoreOptions& options = {});

}  // namespace cairnfs::coherence
