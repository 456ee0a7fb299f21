// LocalLocks: the locks of a host alone, where the kernel cannot keep them because a file has two node ids there
// (docs/decisions/locks-on-one-host.md). They live in memory, and end with the mount.
//
// A waiter does not stand in the way of others. Whoever waits for longer is tried first when something is freed. A wait
// for a record lock that closes a cycle of owners who wait for each other, over all files, ends with kDeadlock. A try
// that a close may let in waits too, for a moment.
#pragma once

#include <atomic>
#include <deque>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "coherence/file_locks.h"

namespace cairnfs::coherence {

class LocalLocks final : public FileLocks {
 public:
  // A try does not wait for longer. A release comes microseconds after its close.
  static constexpr std::chrono::milliseconds kTryFor{50};

  LocalLocks() = default;  // has no thread before somebody waits
  // REQUIRES (unchecked): no call is in progress or follows. What waits is answered with kInterrupted.
  ~LocalLocks() override;

  bool MayHoldOf(InodeId inode, uint64_t owner) const override;
  bool MayHoldThrough(InodeId inode, uint64_t handle) const override;
  void TryLock(const Request& request, Done<Outcome> done) override;
  Ticket Lock(const Request& request, Done<Outcome> done) override;
  void Cancel(InodeId inode, Ticket ticket) override;
  void Unlock(const Request& request, const Done<void>& done) override;
  void Test(const Request& request, Done<std::optional<Holder>> done) override;
  void ReleaseHandle(InodeId inode, uint64_t handle) override;
  void NoteClosed(InodeId inode, uint64_t handle) override;
  bool AwaitsRelease(const Request&) const override { return false; }  // TryLock has waited for it
  void EndWaits() override;

 private:
  // So many waits are looked at for a cycle, then none is found. Linux looks at ten.
  static constexpr size_t kCycleWaitsMax = 1000;

  struct Wait {
    Ticket ticket;
    FileLock lock;
    Done<Outcome> done;
    bool is_try = false;  // is in tries_ too
  };
  struct TryThatWaits {
    Clock::time_point until;
    InodeId inode;
    Ticket ticket;
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
    bool empty() const { return outcomes.empty(); }
    void Send();
  };

  bool MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const EXCLUDES_LOCK(mutex_);
  // Whether it is granted, nullopt: somebody holds what is in the way.
  std::optional<Result<Outcome>> Take(Inode& state, const FileLock& lock) REQUIRES_LOCK(mutex_);
  Result<Outcome> BeginWait(InodeId inode, Wait wait) REQUIRES_LOCK(mutex_);
  bool ClosesCycle(InodeId inode, const FileLock& wanted) const REQUIRES_LOCK(mutex_);
  // After something was freed, or replaced by less.
  void GrantWaits(InodeId inode, Answers& answers) REQUIRES_LOCK(mutex_);
  // Takes a wait that ends otherwise. False: it has ended.
  bool EndWait(InodeId inode, Ticket ticket, Outcome outcome, Answers& answers) REQUIRES_LOCK(mutex_);
  // Of one that goes from Inode::waits.
  void ForgetWait(const Wait& wait, InodeId inode) REQUIRES_LOCK(mutex_);
  void ForgetIfEmpty(InodeId inode) REQUIRES_LOCK(mutex_);

  // Of RunEnds; nothing where it has begun. kTooLarge: the system gives no thread.
  Status StartEnds() REQUIRES_LOCK(mutex_);
  // Answers waits that were cancelled, and tries whose time is over.
  void RunEnds();

  mutable Mutex mutex_;
  CondVar must_end_;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  Ticket next_ticket_ GUARDED_BY(mutex_) = 1;
  std::unordered_map<InodeId, Inode> inodes_ GUARDED_BY(mutex_);
  // How many those are, for a look without the mutex. Whoever holds a lock was told so after it was counted.
  std::atomic<size_t> inode_count_{0};
  // Of record locks, by their owners. A process has one for each thread that waits.
  std::unordered_multimap<uint64_t, WaitOfOwner> waits_ GUARDED_BY(mutex_);
  std::deque<TryThatWaits> tries_ GUARDED_BY(mutex_);  // the oldest first; some have ended
  Answers cancelled_ GUARDED_BY(mutex_);
  bool stops_ GUARDED_BY(mutex_) = false;
  std::thread ends_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::coherence
