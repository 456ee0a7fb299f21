// ClusterLocks: flock, POSIX and OFD record locks that hold across hosts. docs/decisions/locks-over-hosts.md tells how.
//
// Each host with locks in an inode has one record there, under its session's lease, which it alone writes: the end of
// the session takes it away. Whoever takes a lock compares, in the transaction that writes its own record, that no
// other host's has changed since it was looked at. Whoever finds somebody in the way watches the records, and tries
// again when they change.
//
// What this host's processes hold is kept here. Freeing changes that, and then the record. So a record that could not
// be written, because the store had no room, is made good later by whatever is written next.
//
// Operations on one inode run one after the other, in the order in which they were called. While the store cannot be
// reached they wait; they fail with kStale once the session is lost. Any thread may call all functions.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "cluster/membership.h"
#include "coherence/lock_table.h"
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

  enum class Outcome {
    kGranted,
    kWouldBlock,  // TryLock: somebody holds what stands in the way
    kDeadlock,    // Lock: record locks of processes on this host would wait for each other for ever
    kInterrupted,
  };
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
  using Ticket = uint64_t;  // not 0

  explicit ClusterLocks(const Parts& parts) : ClusterLocks(parts, Options()) {}
  ClusterLocks(const Parts& parts, const Options& options);
  // REQUIRES: no call is in progress or follows. What waits is answered with kInterrupted.
  ~ClusterLocks();
  ClusterLocks(const ClusterLocks&) = delete;

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
  void Unlock(const Request& request, Done<void> done);
  // The lock that would stand in the way of a record lock; nullopt: none.
  void Test(const Request& request, Done<std::optional<Holder>> done);

  // A process closed a descriptor: its record locks on the file go. At once when it has none.
  void ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done);
  // The open file is gone, and what was locked through it. Later calls for the inode come after it.
  void ReleaseHandle(InodeId inode, uint64_t handle);

  // The session is lost, and every lock with it: what waits or runs fails with kStale. REQUIRES: before
  // Membership::Rejoin.
  void ForgetAll();
  // The mount ends: waits end with kInterrupted, also later ones, and nothing waits for a store that is away.
  void EndWaits();

 private:
  struct Answer {
    Outcome outcome = Outcome::kGranted;
    std::optional<FileLock> holder;
  };
  enum class Kind { kTry, kWait, kCancel, kUnlock, kReleaseHandle, kTest };
  struct Operation {
    Kind kind;
    FileLock lock;
    Ticket ticket = 0;        // kWait, kCancel
    Done<Answer> done;        // may be empty
    unsigned tries = 0;       // kTry: that were refused
    uint64_t since = kNever;  // kWait: as WaitingLock
  };
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Inode {
    explicit Inode(const cluster::NodeId& self) : known(self) {}
    KnownLocks known;
    std::deque<Operation> queue;
    std::vector<Operation> waiting;      // found somebody in the way, the oldest first
    bool running = false;                // a task for it is posted or at work
    bool must_read = false;              // `known` is out of date
    bool is_fresh = false;               // the others' locks were read for the first of the queue
    bool behind = false;                 // the host's record is not as `known.own` and `waiting` have it
    bool stalled = false;                // nothing is tried but what is asked for: the store refused the last write
    std::unique_ptr<kv::KvWatch> watch;  // made and ended by the task alone
    bool watch_failed = false;           // the last try to make it
    bool ends_watch = false;             // once nobody waits
  };
  enum class Step { kIdle, kRead, kCommit, kStartWatch, kEndWatch, kRest };
  // What the task of an inode does without the mutex.
  struct Work {
    Step step = Step::kIdle;
    uint64_t epoch = 0;
    bool is_for_first = false;         // kRead: the first of the queue asked for it
    std::chrono::nanoseconds rest{0};  // kRest
    // kCommit: a transaction that writes the host's record.
    HostLocks record{};
    bool takes = false;  // a lock: compares that the others' records are as they were known
    uint64_t as_of = 0;
    std::optional<Operation> operation{};  // to be answered with `answer`
    Answer answer{};
    Ticket ticket = 0;  // of one of `waiting`, which takes its lock, or is announced
  };
  using Told = std::vector<std::pair<Done<Answer>, Result<Answer>>>;  // what is over, to be told without the mutex

  FileLock LockOf(const Request& request) const;
  Inode& StateOf(InodeId inode) REQUIRES_LOCK(mutex_);
  void Ask(InodeId inode, Operation operation);
  void Wake(InodeId inode, Inode& state) REQUIRES_LOCK(mutex_);
  // Whether a lock that `matches` may be held here or in the record, or something is going on.
  bool MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const REQUIRES_LOCK(mutex_);
  static void Tell(Told& told);
  static Error LocksLost();                                                             // kStale: with the session
  static Result<Answer> AnswerWithout(const Operation& operation, const Error& error);  // it could not be done

  // The task of an inode: what to do next, and doing it.
  void Serve(InodeId inode);
  Work NextWork(InodeId inode, std::chrono::nanoseconds late, Told& told) REQUIRES_LOCK(mutex_);
  // For the first of the queue. nullopt: it was answered, or waits.
  std::optional<Work> Begin(InodeId inode, Inode& state, std::chrono::nanoseconds late, Told& told)
      REQUIRES_LOCK(mutex_);
  std::optional<Work> BeginLock(InodeId inode, Inode& state, std::chrono::nanoseconds late, Told& told)
      REQUIRES_LOCK(mutex_);
  std::optional<Work> BeginWait(InodeId inode, Inode& state, Told& told) REQUIRES_LOCK(mutex_);
  // Answers the first of the queue, once the record is written where it is behind.
  std::optional<Work> End(Inode& state, Answer answer, Told& told) REQUIRES_LOCK(mutex_);
  // A transaction that takes a lock, for the first of the queue or for one that waits (`ticket`).
  std::optional<Work> Take(Inode& state, const Operation& operation, Ticket ticket, Told& told) REQUIRES_LOCK(mutex_);
  static HostLocks RecordOf(const Inode& state);
  static Work ReadFor(const Inode& state);
  static Work WriteOf(const Inode& state);  // the record alone
  static Operation TakeFirst(Inode& state);
  static bool EndWait(Inode& state, Ticket ticket, Result<Answer> answer, Told& told);
  // Whether the wait would close a cycle of owners of this host that wait for each other.
  bool ClosesCycle(const Inode& state, const FileLock& wanted) REQUIRES_LOCK(mutex_);

  void Read(InodeId inode, const Work& work);
  void Commit(InodeId inode, Work& work);
  Status TryCommit(InodeId inode, const Work& work);
  void NoteRefusal(InodeId inode, Work& work, const Error& error, Told& told) REQUIRES_LOCK(mutex_);
  Result<cluster::Membership::Session> SessionOf(uint64_t epoch) const;
  // Waits before the next try; false when there is no sense in one.
  bool Pause(uint64_t epoch, unsigned failures);
  void StartWatch(InodeId inode);
  void KeepWatch(InodeId inode) REQUIRES_LOCK(mutex_);
  void EndWatch(InodeId inode);
  void OnChanges(InodeId inode, const std::vector<kv::KvEvent>& events, uint64_t revision);
  void ReadAnew(InodeId inode);
  // The store refused a write: again in a while.
  void Stall(InodeId inode, Inode& state, const Error& error) REQUIRES_LOCK(mutex_);
  void WakeStalled(size_t count) REQUIRES_LOCK(mutex_);
  void RetryStalled();

  const Parts parts_;
  std::atomic<Ticket> next_ticket_{1};
  std::atomic<uint64_t> commits_{0};  // names each

  mutable Mutex mutex_;
  CondVar changed_;                        // of epoch_ and ending_
  uint64_t epoch_ GUARDED_BY(mutex_) = 0;  // counts ForgetAll
  bool ending_ GUARDED_BY(mutex_) = false;
  std::unordered_map<InodeId, Inode> inodes_ GUARDED_BY(mutex_);
  std::set<InodeId> waited_in_ GUARDED_BY(mutex_);  // all inodes in which somebody waits, and perhaps others
  std::deque<InodeId> watched_ GUARDED_BY(mutex_);  // whose watches go on when nobody waits, the oldest first
  std::deque<InodeId> stalled_ GUARDED_BY(mutex_);
  bool retry_posted_ GUARDED_BY(mutex_) = false;

  TaskQueue tasks_;  // the last: goes first, and runs what is queued, which may queue more
};

}  // namespace cairnfs::coherence
