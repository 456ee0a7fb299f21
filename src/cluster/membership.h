// Membership: this host's session with the cluster, and who else is there.
//
// The session is a key under a lease that is kept alive once a second. Every transaction of this host compares that the
// key is still the one it made (FencedStore), so a host that was cut off or paused past its lease can publish nothing.
// Keys: docs/formats/cluster.md.
//
// A node is down as soon as its session ends, and out once some node that is up has seen it down for out_after; that
// node writes it down in the store, so that all hosts have the same order of nodes for a chunk. Time in which the
// observer was itself not running, or could not reach the store, does not count: when a whole cluster was off for an
// hour nobody is out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/context.h"
#include "cluster/types.h"
#include "kv/answer_watch.h"
#include "kv/shared_store.h"

namespace cairnfs::cluster {

// Distinct for each running kernel; when there is none to read, for each process.
std::string PlaceOfThisKernel();

inline constexpr size_t kMemberTextBytesMax = 1024;  // of a node's name, address, domain

struct MembershipOptions {
  NodeInfo self;  // id, name, address, domain, weight
  // What of `self` nobody has configured. A node that took the place of another one has that one's instead.
  struct Unconfigured {
    bool name = false, domain = false, weight = false;
  } unconfigured;
  std::chrono::milliseconds lease{5000};
  std::chrono::milliseconds renew_every{1000};  // at most half of `lease`
  std::chrono::milliseconds out_after{300'000};
  // The data directory, on this kernel, that this process has locked. A session of the same node and place is that of a
  // dead process, because that lock lets one live at a time; of another place it may be that of a copy of the
  // directory, and is waited out. Empty: PlaceOfThisKernel().
  std::string place;
  std::shared_ptr<kv::AnswerWatch> answers;  // of the store, also for WaitForSession; null: nobody ends its calls
};

struct MembershipStats {
  uint64_t sessions_lost_total = 0;
  // Sessions in which the store is known to have gone back to an older state. May be known only after the next began.
  uint64_t went_back_total = 0;
  uint64_t renewals_total = 0;  // that succeeded
  uint64_t renewals_failed_total = 0;
  unsigned session_waits = 0;  // threads that wait at present to learn whether the session lives
};

class Membership {
 public:
  // Registers the node, takes a session, reads who is there. `store` outlives it. A session that a dead process of the
  // same node and place left behind is replaced at once, which refuses whatever of it is still on its way.
  // kPermission: it was removed. kAlreadyExists: another place has a live session for this data directory, after
  // waiting for its lease to end. kInvalidArgument: the options. kUnavailable.
  static Result<std::unique_ptr<Membership>> Join(kv::SharedKvStore& store, const MembershipOptions& options);
  virtual ~Membership() = default;  // gives the session up

  virtual const NodeId& self() const = 0;
  virtual ViewPtr view() const = 0;  // any thread, cheap
  // Called after changes of the view, on a thread of its own, one call at a time, with the view of that moment: changes
  // that come quickly after each other are told once. Destroying the handle waits for a call that runs, so it must not
  // be done in the call itself; afterwards there is none.
  virtual std::shared_ptr<void> OnChange(std::function<void(const ViewPtr&)> changed) = 0;

  // The session that transactions compare. kUnavailable while it is not known whether it lives (the store cannot be
  // reached and the lease may have ended), kStale once it is known to be lost. A lost session is not made anew: the
  // daemon ends its open files with errors, then asks Rejoin.
  struct Session {
    std::string key;
    uint64_t revision = 0;
    kv::LeaseId lease = 0;
    uint64_t number = 0;  // of those of this object: 1, 2, ...
  };
  virtual Result<Session> session() const = 0;
  // As session(), but waits within `context` while it is not known whether it lives. kStale also when the session that
  // there was at the call was lost and another one made meanwhile.
  virtual Result<Session> WaitForSession(const Context& context) const = 0;
  // Whether the lease certainly lives at this instant, by this host's own clock, which runs on while the process or the
  // machine is suspended: what was cached under it may be used. Any thread, cheap.
  virtual bool LeaseHolds() const = 0;
  // `lost` is called once for each session that is known to be lost, on a thread of its own; it may call Rejoin. Set
  // later than the loss it is called at once.
  virtual void OnLost(std::function<void()> lost) = 0;
  // Takes a new session in place of a lost one; no error when none is lost. Whatever was read or prepared under the
  // lost one must have been given up before: transactions that begin now are compared with the new session. Errors as
  // Join; it may be tried again.
  virtual Status Rejoin() = 0;
  struct Loss {
    std::string why;
    bool went_back = false;  // the store, to an older state
  };
  // Somebody found out, by a transaction or a revision that went back, that this session is lost. Without effect on
  // later ones.
  virtual void ReportLost(const Session& session, const Loss& loss) = 0;

  // Tells the others that this node takes no new chunks, or takes them again. Asynchronous.
  virtual void SetFull(bool full) = 0;
  // Has a node give away what it has, or takes that back; until then, over restarts, its weight is 0. Of any node.
  // kNotFound.
  enum class Drain { kBegin, kCancel };
  virtual Status SetDrain(const NodeId& id, Drain drain) = 0;
  // This node, as it was drained at that revision, has nothing any more and takes nothing; or has something.
  // Asynchronous.
  virtual void SetEmpty(bool empty, uint64_t drain) = 0;
  // Removes a node, from any node: kNotFound, kBusy while it is up. kDrained: kInvalidArgument unless it was drained
  // and has said that it is empty, or was never there. kLost: what it alone has is lost.
  enum class Removal { kDrained, kLost };
  virtual Status Remove(const NodeId& id, Removal removal) = 0;
  // This node takes the place of another one, which is removed as one that is lost, in one step: what of this node
  // nobody has configured is as it was there, from now on and at each start; the name only if it is asked for. It is
  // done already where this node has that place. kNotFound; kBusy: it is up.
  enum class PlaceName { kKept, kTaken };
  virtual Status Replace(const NodeId& id, PlaceName name) = 0;
  // For a start that comes to nothing: where Join registered this node, which was not known before, the destructor
  // removes it again, unless the session is lost or the store does not answer. REQUIRES (unchecked): nothing is stored
  // on it.
  virtual void ForgetAtEnd() {}

  virtual MembershipStats stats() const = 0;
};

}  // namespace cairnfs::cluster
