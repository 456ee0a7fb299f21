// FileLocks: flock, POSIX and OFD record locks that the daemon keeps. LocalLocks are those of a host alone,
// ClusterLocks hold across hosts. Any thread may call all functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "coherence/lock_table.h"

namespace cairnfs::coherence {

enum class LockOutcome {
  kGranted,
  kWouldBlock,  // of a try: somebody holds what stands in the way
  kDeadlock,    // of a wait: owners of record locks would wait for each other for ever
  kInterrupted,
};

using LockTicket = uint64_t;  // of a wait; not 0

class FileLocks {
 public:
  template <typename T>
  using Done = std::function<void(Result<T>)>;

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
  // As a host that is called `node` has it in its tables.
  static FileLock LockOf(const Request& request, const cluster::NodeId& node);

  FileLocks() = default;
  virtual ~FileLocks() = default;
  FileLocks(const FileLocks&) = delete;

  // Whether closing may free locks: of this owner, as ReleaseOwner, or through this open file, as ReleaseHandle.
  virtual bool MayHoldOf(InodeId inode, uint64_t owner) const = 0;
  virtual bool MayHoldThrough(InodeId inode, uint64_t handle) const = 0;

  // `done` is called exactly once, perhaps before the function returns, on any thread and with no lock held. After an
  // error the lock is not held.
  // What the owner holds in the range is replaced; a flock of another type goes before the new one is tried, as
  // flock(2) has it. kTooLarge: more locks on the file than a host may have.
  virtual void TryLock(const Request& request, Done<Outcome> done) = 0;
  // Waits. The ticket is for Cancel.
  virtual Ticket Lock(const Request& request, Done<Outcome> done) = 0;
  // Ends a wait in the inode with kInterrupted, or lets it end with kGranted when that came first. Nothing when it has
  // ended. Calls `done` on another thread.
  virtual void Cancel(InodeId inode, Ticket ticket) = 0;
  // Frees the owner's locks in the range. At once when it has none.
  virtual void Unlock(const Request& request, const Done<void>& done) = 0;
  // The lock that would stand in the way of a record lock; nullopt: none.
  virtual void Test(const Request& request, Done<std::optional<Holder>> done) = 0;

  // A process closed a descriptor: its record locks on the file go. At once when it has none.
  void ReleaseOwner(InodeId inode, uint64_t owner, const Done<void>& done);
  // The open file is gone, and what was locked through it. Later calls for the inode come after it.
  virtual void ReleaseHandle(InodeId inode, uint64_t handle) = 0;

  // close(2) does not wait for ReleaseHandle. So who tries a lock after the close could be told too early that it is
  // held.
  // A descriptor of the open file was closed: perhaps the last one.
  virtual void NoteClosed(InodeId inode, uint64_t handle) = 0;
  // Whether a try that was refused is to be made again: a lock that this host holds, and that stands in the way, may be
  // freed by a close that has returned. For a second: after that the open file is taken to have more descriptors.
  virtual bool AwaitsRelease(const Request& request) const = 0;

  // The mount ends: waits end with kInterrupted, also later ones.
  virtual void EndWaits() = 0;
};

// For MayHold of both: what was locked through the open file.
inline auto LockedThrough(uint64_t handle) {
  return [handle](const FileLock& held) { return held.handle == handle; };
}

// Open files that were closed, as NoteClosed tells, and whose release may be on its way. Of one inode; not thread-safe.
class ClosingHandles {
 public:
  void Note(uint64_t handle);
  void Forget(uint64_t handle) { closed_at_.erase(handle); }
  // Whether one of `held` that stands in the way of `wanted` may be freed by a close that has returned.
  bool MayFree(const std::vector<FileLock>& held, const FileLock& wanted) const;

 private:
  std::map<uint64_t, Clock::time_point> closed_at_;
};

}  // namespace cairnfs::coherence
