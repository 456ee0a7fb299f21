// ClusterLocks: flock, POSIX and OFD record locks that hold across hosts. docs/decisions/locks-over-hosts.md tells how.
//
// Each host with locks in an inode has one record there, under its session's lease, which it alone writes: the end of
// the session takes it away. Whoever takes a lock compares, in the transaction that writes its own record, that no
// other host's has changed since it was looked at. Whoever finds somebody in the way watches the records, and tries
// again when they change. A wait for a record lock that closes a cycle of owners who wait for each other, over all
// hosts and files, ends with kDeadlock (coherence/lock_cycle.h).
//
// InodeLocks decides what is to be done for an inode; ClusterLocks does it, on threads of its own. Operations on one
// inode run one after the other, in the order in which they were called. While the store cannot be reached they wait;
// they fail with kStale once the session is lost. Any thread may call all functions.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/context.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "cluster/membership.h"
#include "coherence/inode_locks.h"
#include "coherence/lock_holders.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

class ClusterLocks {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  struct Parts {                      // all outlive it
    kv::SharedKvStore& shared;        // for watches
    kv::KvStore& fenced;              // for all else: MakeFencedStore
    cluster::Membership& membership;  // whose session the locks belong to
  };
  struct Options {
    unsigned threads = 4;  // each waits for the store on behalf of one inode
  };

  using Outcome = LockOutcome;
  using Ticket = LockTicket;
  struct Request {
    InodeId inode;
    LockKind kind = LockKind::kRecord;
    uint64_t owner = 0;   // of record locks: the kernel's number
    uint64_t handle = 0;  // of the open file, which is the owner of a flock
    uint32_t pid = 0;
    LockType type = LockType::kShared;
    uint64_t start = 0, last = kLockOffsetMax;  // of record locks
  };
  struct Holder {
    LockType type;
    uint64_t start, last;
    uint32_t pid;  // 0: on another host
  };

  explicit ClusterLocks(const Parts& parts) : ClusterLocks(parts, Options()) {}
  ClusterLocks(const Parts& parts, const Options& options);
  // REQUIRES (unchecked): no call is in progress or follows. What waits is answered with kInterrupted.
  ~ClusterLocks();
  ClusterLocks(const ClusterLocks&) = delete;

  // Whether closing may free locks: of this owner, as ReleaseOwner, or through this open file, as ReleaseHandle.
  bool MayHoldOf(InodeId inode, uint64_t owner) const;
  bool MayHoldThrough(InodeId inode, uint64_t handle) const;

  // `done` is called exactly once, perhaps before the function returns, on any thread and with no lock held. After an
  // error the lock is not held.
  // What the owner holds in the range is replaced; a flock of another type goes before the new one is tried, as
  // flock(2) has it. kTooLarge: more locks on the file than a host may have. kStale: the session is lost. kNoSpace.
  void TryLock(const Request& request, Done<Outcome> done);
  // Waits. Whoever began to wait first has it first, over all hosts, as far as their hosts answer. The ticket is for
  // Cancel.
  Ticket Lock(const Request& request, Done<Outcome> done);
  // Ends a wait in the inode with kInterrupted, or lets it end with kGranted when that came first. Nothing when it has
  // ended. Calls `done` on another thread.
  void Cancel(InodeId inode, Ticket ticket);
  // Frees the owner's locks in the range. At once when it has none. kNoSpace: they go as soon as the store has room.
  void Unlock(const Request& request, const Done<void>& done);
  // The lock that would stand in the way of a record lock; nullopt: none.
  void Test(const Request& request, Done<std::optional<Holder>> done);

  // A process closed a descriptor: its record locks on the file go. At once when it has none.
  void ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done);
  // The open file is gone, and what was locked through it. Later calls for the inode come after it.
  void ReleaseHandle(InodeId inode, uint64_t handle);

  // close(2) does not wait for ReleaseHandle. So whoever tries a lock after the close may be told too early that it is
  // held.
  // A descriptor of the open file was closed: perhaps the last one.
  void NoteClosed(InodeId inode, uint64_t handle);
  // Whether a lock that this host holds, and that stands in the way, may be freed by a close that has returned: for a
  // second. After that the open file is taken to have more descriptors.
  bool AwaitsRelease(const Request& request) const;

  // The session is lost, and every lock with it: what waits or runs fails with kStale. REQUIRES
  // (unchecked): before Membership::Rejoin.
  void ForgetAll();
  // The mount ends: waits end with kInterrupted, also later ones, and nothing waits for a store that is away.
  void EndWaits();

 private:
  using Operation = LockOperation;
  using Answers = InodeLocks::Answers;
  struct Inode {
    explicit Inode(const cluster::NodeId& self) : locks(self) {}
    InodeLocks locks;
    std::map<uint64_t, Clock::time_point> closing;  // open files, by NoteClosed
    bool running = false;                           // a task for it is posted or at work
    std::unique_ptr<kv::KvWatch> watch;             // made and ended by the task alone
    bool watch_failed = false;                      // the last try to make it
    bool ends_watch = false;                        // once nobody waits
    std::vector<LockOwner> holders;                 // of record locks, as holders_ has them
  };

  FileLock LockOf(const Request& request) const;
  Inode& StateOf(InodeId inode) REQUIRES_LOCK(mutex_);
  void Ask(InodeId inode, Operation operation) EXCLUDES_LOCK(mutex_);
  void AskIn(InodeId inode, Operation operation) REQUIRES_LOCK(mutex_);
  void Wake(InodeId inode, Inode& state) REQUIRES_LOCK(mutex_);
  // Whether a lock that `matches` may be held here or in the record, or something is going on.
  bool MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const REQUIRES_LOCK(mutex_);
  static void Send(Answers& answers);
  // Logs, once a minute, that a file has as many locks as it can have.
  void TellFull(InodeId inode, const Answers& answers) REQUIRES_LOCK(mutex_);
  static Error LocksLost();  // kStale: with the session

  // cluster_locks_store.cc: the task of an inode, which works until there is nothing to do.
  void Serve(InodeId inode);
  LockWork NextWork(InodeId inode, std::chrono::nanoseconds late, uint64_t& epoch) EXCLUDES_LOCK(mutex_);
  void Read(InodeId inode, uint64_t epoch, const LockWork& work);
  void FindCycle(InodeId inode, uint64_t epoch, const LockWork& work);
  Result<kv::KvRange> ReadRecords(const std::string& prefix, uint64_t epoch);
  void Commit(InodeId inode, uint64_t epoch, LockWork& work);
  Status TryCommit(InodeId inode, uint64_t epoch, const LockWork& work);
  Result<cluster::Membership::Session> SessionOf(uint64_t epoch) const;
  // Waits before the next try; false when there is no sense in one.
  bool Pause(uint64_t epoch, unsigned failures);

  // Begins or ends the watch of an inode where that is due. True when it did something.
  bool TendWatch(InodeId inode);
  bool StartWatch(InodeId inode, uint64_t after);
  void KeepWatch(InodeId inode) REQUIRES_LOCK(mutex_);
  // What a watch tells. nullopt: something is not told.
  void OnChanges(InodeId inode, const std::optional<std::vector<kv::KvEvent>>& events, uint64_t revision);

  // The store refused what was to be written: again in a while.
  void RetryLater(InodeId inode, const Error& error) REQUIRES_LOCK(mutex_);
  void RetryStalled();
  void WakeStalled(size_t count) REQUIRES_LOCK(mutex_);

  // The next look for a deadlock in the inode is due after a while, the longer the more were in vain.
  void RestFromLooks(InodeId inode, unsigned vain_looks) REQUIRES_LOCK(mutex_);
  void EndRests();

  const Parts parts_;
  std::atomic<Ticket> next_ticket_{1};
  std::atomic<uint64_t> commits_{0};  // names each

  std::stop_source ending_;                     // requested without the mutex
  const Context context_{ending_.get_token()};  // of all that waits here, and of the calls to the store

  mutable Mutex mutex_;
  CondVar changed_;                        // epoch_, and the first of resting_
  uint64_t epoch_ GUARDED_BY(mutex_) = 0;  // counts ForgetAll
  std::unordered_map<InodeId, Inode> inodes_ GUARDED_BY(mutex_);
  std::deque<InodeId> watched_ GUARDED_BY(mutex_);  // whose watches go on when nobody waits, the oldest first
  std::deque<InodeId> stalled_ GUARDED_BY(mutex_);  // of inodes_, each once
  bool retry_posted_ GUARDED_BY(mutex_) = false;
  LockHolders holders_ GUARDED_BY(mutex_);                                // in all of inodes_
  std::multimap<Clock::time_point, InodeId> resting_ GUARDED_BY(mutex_);  // by when they look for deadlocks again
  bool rests_posted_ GUARDED_BY(mutex_) = false;
  std::optional<Clock::time_point> told_full_at_ GUARDED_BY(mutex_);

  // One task for each of inodes_, one that tries again, and one that ends rests. The last: goes first, and runs what is
  // queued, which may queue more.
  TaskQueue tasks_;
};

}  // namespace cairnfs::coherence
