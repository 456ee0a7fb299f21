// LocalLocks: the locks of a host alone, where the kernel cannot keep them because a file has two node ids there
// (docs/decisions/locks-on-one-host.md). They live in memory, and end with the mount.
//
// A waiter does not stand in the way of others. Whoever waits for longer is tried first when something is freed. A wait
// for a record lock that closes a cycle of owners who wait for each other, over all files, ends with kDeadlock.
#pragma once

#include <unordered_map>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "coherence/file_locks.h"

namespace cairnfs::coherence {

class LocalLocks final : public FileLocks {
 public:
  LocalLocks() = default;
  // REQUIRES (unchecked): no call is in progress or follows. What waits is answered with kInterrupted.
  ~LocalLocks() override { EndWaits(); }

  bool MayHoldOf(InodeId inode, uint64_t owner) const override;
  bool MayHoldThrough(InodeId inode, uint64_t handle) const override;
  void TryLock(const Request& request, Done<Outcome> done) override;
  Ticket Lock(const Request& request, Done<Outcome> done) override;
  void Cancel(InodeId inode, Ticket ticket) override;
  void Unlock(const Request& request, const Done<void>& done) override;
  void Test(const Request& request, Done<std::optional<Holder>> done) override;
  void ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done) override;
  void ReleaseHandle(InodeId inode, uint64_t handle) override;
  void NoteClosed(InodeId inode, uint64_t handle) override;
  bool AwaitsRelease(const Request& request) const override;
  void EndWaits() override;

 private:
  // So many waits are looked at for a cycle, then none is found. Linux looks at ten.
  static constexpr size_t kCycleWaitsMax = 1000;

  struct Wait {
    Ticket ticket;
    FileLock lock;
    Done<Outcome> done;
  };
  struct Inode {
    LockTable held;
    std::vector<Wait> waits;  // the oldest first
    ClosingHandles closing;
    bool empty() const { return held.empty() && waits.empty(); }
  };
  struct WaitOfOwner {
    InodeId inode;
    FileLock lock;
  };
  // Of what is over, to be sent when the mutex is not held.
  struct Answers {
    std::vector<std::pair<Done<Outcome>, Result<Outcome>>> outcomes;
    void Send();
  };

  bool MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const EXCLUDES_LOCK(mutex_);
  // Whether it is granted, nullopt: somebody holds what is in the way.
  std::optional<Result<Outcome>> Take(Inode& state, const FileLock& lock) REQUIRES_LOCK(mutex_);
  Result<Outcome> BeginWait(InodeId inode, Wait wait) REQUIRES_LOCK(mutex_);
  bool ClosesCycle(InodeId inode, const FileLock& wanted) const REQUIRES_LOCK(mutex_);
  // After something was freed, or replaced by less.
  void GrantWaits(InodeId inode, Answers& answers) REQUIRES_LOCK(mutex_);
  void ForgetWait(const FileLock& lock, InodeId inode) REQUIRES_LOCK(mutex_);
  void ForgetIfEmpty(InodeId inode) REQUIRES_LOCK(mutex_);

  mutable Mutex mutex_;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  Ticket next_ticket_ GUARDED_BY(mutex_) = 1;
  std::unordered_map<InodeId, Inode> inodes_ GUARDED_BY(mutex_);
  // Of record locks, by their owners. A process has one for each thread that waits.
  std::unordered_multimap<uint64_t, WaitOfOwner> waits_ GUARDED_BY(mutex_);

  TaskQueue cancels_{"locks", 1};  // a task for each wait at most, which is a request of the kernel
};

}  // namespace cairnfs::coherence
