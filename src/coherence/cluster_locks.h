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
#include "coherence/file_locks.h"
#include "coherence/inode_locks.h"
#include "coherence/lock_holders.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

class ClusterLocks final : public FileLocks {
 public:
  struct Parts {                      // all outlive it
    kv::SharedKvStore& shared;        // for watches
    kv::KvStore& fenced;              // for all else: MakeFencedStore
    cluster::Membership& membership;  // whose session the locks belong to
  };
  struct Options {
    unsigned threads = 4;  // each waits for the store on behalf of one inode
  };

  explicit ClusterLocks(const Parts& parts) : ClusterLocks(parts, Options()) {}
  ClusterLocks(const Parts& parts, const Options& options);
  // REQUIRES (unchecked): no call is in progress or follows. What waits is answered with kInterrupted.
  ~ClusterLocks() override;

  bool MayHoldOf(InodeId inode, uint64_t owner) const override;
  bool MayHoldThrough(InodeId inode, uint64_t handle) const override;
  // Of these, kStale: the session is lost. kNoSpace.
  void TryLock(const Request& request, Done<Outcome> done) override;
  // Whoever began to wait first has it first, over all hosts, as far as their hosts answer.
  Ticket Lock(const Request& request, Done<Outcome> done) override;
  void Cancel(InodeId inode, Ticket ticket) override;
  // kNoSpace: they go as soon as the store has room.
  void Unlock(const Request& request, const Done<void>& done) override;
  void Test(const Request& request, Done<std::optional<Holder>> done) override;
  void ReleaseHandle(InodeId inode, uint64_t handle) override;
  void NoteClosed(InodeId inode, uint64_t handle) override;
  bool AwaitsRelease(const Request& request) const override;

  // The session is lost, and every lock with it: what waits or runs fails with kStale. REQUIRES
  // (unchecked): before Membership::Rejoin.
  void ForgetAll();
  // And nothing waits for a store that is away.
  void EndWaits() override;

 private:
  using Operation = LockOperation;
  using Answers = InodeLocks::Answers;
  struct Inode {
    explicit Inode(const cluster::NodeId& self) : locks(self) {}
    InodeLocks locks;
    ClosingHandles closing;
    bool running = false;                // a task for it is posted or at work
    std::unique_ptr<kv::KvWatch> watch;  // made and ended by the task alone
    bool watch_failed = false;           // the last try to make it
    bool ends_watch = false;             // once nobody waits
    std::vector<LockOwner> holders;      // of record locks, as holders_ has them
  };

  FileLock LockOf(const Request& request) const { return FileLocks::LockOf(request, parts_.membership.self()); }
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
