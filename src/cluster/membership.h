// Membership: this host's session with the cluster, and who else is there.
//
// The session is a key under a lease that is kept alive once a second. Every transaction of this host compares that the
// key is still the one it made (FencedStore), so a host that was cut off or paused past its lease can publish nothing.
// Keys: docs/formats/cluster.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "cluster/types.h"
#include "kv/shared_store.h"

namespace cairnfs::cluster {

struct MembershipOptions {
  NodeInfo self;  // id, name, address, domain, weight
  std::chrono::milliseconds lease{5000};
  std::chrono::milliseconds renew_every{1000};
  std::chrono::seconds out_after{300};
};

class Membership {
 public:
  // Registers the node, takes a session, reads who is there. `store` outlives it. kAlreadyExists: another process has
  // a live session for this data directory (waits out its lease first). kUnavailable.
  static Result<std::unique_ptr<Membership>> Join(kv::SharedKvStore& store, const MembershipOptions& options);
  virtual ~Membership() = default;  // gives the session up

  virtual const NodeId& self() const = 0;
  virtual ViewPtr view() const = 0;  // any thread, cheap
  // Called after each change of the view, on a thread of its own, one at a time. The returned handle ends it.
  virtual std::shared_ptr<void> OnChange(std::function<void(const ViewPtr&)> changed) = 0;

  // The session that transactions compare. kUnavailable while it is not known whether it lives (the store cannot be
  // reached and the lease may have ended), kStale once it is known to be lost. A lost session is not made anew: the
  // daemon ends its open files with errors, then asks Rejoin.
  struct Session {
    std::string key;
    uint64_t revision = 0;
    kv::LeaseId lease = 0;
  };
  virtual Result<Session> session() const = 0;
  // Whether the lease certainly lives at this instant, by this host's own monotonic clock: what was cached under it may
  // be used.
  virtual bool LeaseHolds() const = 0;
  // Called once when the session is known to be lost, on a thread of its own.
  virtual void OnLost(std::function<void()> lost) = 0;
  virtual Status Rejoin() = 0;

  // Tells the others that this node takes no new chunks, or takes them again. Asynchronous.
  virtual void SetFull(bool full) = 0;
  // Removes a node that is not coming back, from any node: kNotFound, kBusy while it is up.
  virtual Status Forget(const NodeId& id) = 0;
};

// A KvStore whose commits also compare this host's session: kStale when that is lost, whatever the caller did. Reads
// pass through. Both outlive it.
std::unique_ptr<kv::KvStore> MakeFencedStore(kv::SharedKvStore& store, Membership& membership);

}  // namespace cairnfs::cluster
