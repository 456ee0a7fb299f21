// ClusterLocks: flock, POSIX and OFD record locks that hold across hosts. docs/decisions/locks-over-hosts.md tells how.
//
// The locks of an inode are one record of the shared store (meta/lock_table.h). Every answer comes from a transaction
// that compared the record, or from a read of it; what this host remembers of a record is a guess that saves a round
// trip. A lock belongs to the session in which it was taken, and each transaction compares that the session lives. The
// locks of another session count until the store itself says that its key is gone.
//
// Operations on one inode run one after the other, in the order in which they were called; those that queue up
// meanwhile share a transaction. While the store cannot be reached they wait; they fail with kStale once the session is
// lost. While it has no room they fail with kNoSpace, and what frees goes on being tried, so that nobody has to ask for
// it again; but what may have taken a lock, in a transaction whose answer was lost, waits until that is known. Any
// thread may call all functions.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
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
  using HandleId = uint64_t;  // of an open file of this host

  struct Parts {                      // all outlive it
    kv::SharedKvStore& shared;        // for watches
    kv::KvStore& fenced;              // for all else: MakeFencedStore
    cluster::Membership& membership;  // its view tells whom to doubt
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
    HandleId handle = 0;  // of the open file, which is the owner of a flock
    uint32_t pid = 0;
    LockType type = LockType::kShared;
    uint64_t start = 0, last = kLockOffsetMax;  // of record locks
  };
  struct Holder {
    LockType type;
    uint64_t start, last;
    uint32_t pid;  // 0: on another host
  };
  using Ticket = uint64_t;

  static std::unique_ptr<ClusterLocks> Start(const Parts& parts, const Options& options);
  // REQUIRES: no call is in progress or follows. What waits is answered with kInterrupted.
  ~ClusterLocks();
  ClusterLocks(const ClusterLocks&) = delete;

  // `done` is called exactly once, perhaps before the function returns, on any thread and with no lock held.
  // What the owner holds in the range is replaced; a flock of another type goes before the new one is tried, as
  // flock(2) has it. kTooLarge: more locks on the file than a record holds. kStale: the session is lost.
  void TryLock(const Request& request, Done<Outcome> done);
  // Waits in the order of arrival over all hosts. The ticket is for Cancel.
  Ticket Lock(const Request& request, Done<Outcome> done);
  // Ends a wait with kInterrupted, or lets it end with kGranted when that came first. Nothing when it has ended. Calls
  // `done` on another thread.
  void Cancel(Ticket ticket);
  // Frees the owner's locks in the range. At once when it has none. kNoSpace: they go as soon as the store has room.
  void Unlock(const Request& request, Done<void> done);
  // The lock that would stand in the way of a record lock; nullopt: none.
  void Test(const Request& request, Done<std::optional<Holder>> done);

  // A process closed a descriptor: its record locks on the file go. At once when it has none.
  void ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done);
  // The open file is gone, and what was locked through it. Later calls for the inode come after it.
  void ReleaseHandle(InodeId inode, HandleId handle);

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
  struct Operation {
    enum class Kind { kTry, kWait, kCancel, kUnlock, kTest, kReleaseHandle, kSweep };
    Kind kind;
    FileLock lock;          // without its session
    Ticket ticket = 0;      // kWait, kCancel
    Done<Answer> done;      // may be empty
    unsigned tries = 0;     // kTry: runs that were refused
    bool in_doubt = false;  // a transaction with it was sent, and it is not known whether it ran or will run
  };
  struct Record {
    LockTable table;
    uint64_t key_revision = 0;  // for compares; 0: the key does not exist
    uint64_t as_of = 0;         // the store's revision at which it held; 0: guessed
  };
  struct Waiter {  // its entry stands in the record
    FileLock lock;
    Done<Answer> done;
  };
  struct Inode {
    std::deque<Operation> queue;
    // The store had no room for them. They are tried again, ahead of the queue: those that free, and those in doubt.
    std::vector<Operation> refused;
    bool retry_due = false;    // of `refused`, though nobody asks for anything
    bool answer_lost = false;  // of a transaction with `refused`: the guard is still to be written
    bool running = false;      // a task for it is posted or at work
    Record known;
    std::map<Ticket, Waiter> waiters;
    std::unique_ptr<kv::KvWatch> watch;  // made and ended by the task alone
    bool watch_failed = false;           // the last try to make it: what is asked goes first, then it is tried again
    // With what the last sweep was asked for: it is not asked for twice with the same.
    uint64_t swept_revision = 0;
    cluster::ViewPtr swept_view;
  };
  using Session = cluster::Membership::Session;
  using Told = std::vector<std::pair<Done<Answer>, Result<Answer>>>;  // what is over, to be told without the mutex

  // What the operations that run together start from, and what became of them.
  struct Batch {
    InodeId inode;
    uint64_t epoch = 0;
    std::vector<Operation> operations;
    std::map<Ticket, FileLock> waiters;

    Record record;                                     // at first what was known, at last what is
    bool proven = false;                               // `record` was read or written by this batch
    std::map<cluster::NodeId, uint64_t> session_keys;  // revisions, read together with `record`
    bool session_keys_read = false;
    uint64_t guard_revision = 0;
    bool answer_lost = false;  // of the last commit

    LockSession session;  // what was written was written in
    Status status;
    std::vector<std::optional<Result<Answer>>> answers;  // of each operation; nullopt: it waits now
    std::map<Ticket, Result<Answer>> ended;              // of `waiters` and of those that wait now
    std::chrono::nanoseconds late{0};                    // how late the sleep before it ended
    std::chrono::nanoseconds sleep{0};                   // then those run again that were put back into the queue
  };
  // One try at a batch's transaction.
  struct Plan {
    InodeId inode;
    LockTable table;
    std::vector<kv::Compare> compares;
    std::vector<std::optional<Result<Answer>>> answers;
    std::map<Ticket, Result<Answer>> ended;
    bool blocked = false;      // something was in an operation's way
    bool only_purges = false;  // of some dead sessions: what is asked for comes when all are gone
  };
  struct WaitEdge {
    InodeId inode;
    Ticket ticket;
    std::vector<uint64_t> blockers;  // owners on this host
  };
  enum class Step { kBatch, kStartWatch, kEndWatch, kIdle };

  ClusterLocks(const Parts& parts, const Options& options);

  // locks.cc: queues, waits, watches.
  static FileLock LockOf(const Request& request);
  void Ask(InodeId inode, Operation operation);
  void Enqueue(InodeId inode, Inode& state, Operation operation) REQUIRES_LOCK(mutex_);
  void Wake(InodeId inode, Inode& state) REQUIRES_LOCK(mutex_);
  // Whether a lock that `matches` may be held here, or something is going on.
  bool Holds(InodeId inode, const std::function<bool(const FileLock&)>& matches) const REQUIRES_LOCK(mutex_);
  void Serve(InodeId inode);
  Step NextStep(InodeId inode, Batch& batch, Told& told) REQUIRES_LOCK(mutex_);
  void StartWatch(InodeId inode);
  void EndWatch(InodeId inode);
  void OnEvent(InodeId inode, const kv::KvEvent& event);
  void OnView();
  void Finish(Batch& batch);
  void FinishOperation(Batch& batch, size_t index, Inode& state, Told& told) REQUIRES_LOCK(mutex_);
  // Also notes anew for whom the waiters of the inode wait.
  void Adopt(InodeId inode, Inode& state, Record record) REQUIRES_LOCK(mutex_);
  // Ends the waits whose entries are gone from what is known.
  void EndGranted(Inode& state, Told& told) REQUIRES_LOCK(mutex_);
  void EndWait(Inode& state, Ticket ticket, Result<Answer> answer, Told& told) REQUIRES_LOCK(mutex_);
  void EndAllWaits(Inode& state, const Result<Answer>& answer, Told& told) REQUIRES_LOCK(mutex_);
  void SweepIfDoubtful(InodeId inode, Inode& state) REQUIRES_LOCK(mutex_);
  void SweepNow(InodeId inode);
  // Asks for a sweep of every record with locks of sessions that are gone.
  void SweepAll();
  // What the operation is answered when it could not be done.
  static Result<Answer> AnswerWithout(const Operation& operation, const Error& error);
  static Result<Answer> AnswerAtTheEnd(const Operation& operation);  // of one that may have run
  static void Tell(Told& told);
  static Error LocksLost();  // kStale: with the session

  // lock_refusals.cc: what the store has no room for.
  static bool Frees(const Operation& operation);
  static bool MayTake(const Operation& operation);  // in doubt: a lock, or a place among those who wait
  // Whether `kept`, which frees, does what `other` would. An unlock is made to, where the two meet.
  static bool Absorb(Operation& kept, const Operation& other);
  bool IsTriedAgain(const Batch& batch, const Operation& operation) const REQUIRES_LOCK(mutex_);
  // Answers what frees with the error.
  static void KeepRefused(Operation operation, const Error& error, Inode& state, Told& told);
  // After a batch, whose refused operations are kept by now.
  void NoteRefused(const Batch& batch, Inode& state) REQUIRES_LOCK(mutex_);
  // The mount ends: nothing is tried again.
  void EndRefused(Inode& state, Told& told) REQUIRES_LOCK(mutex_);
  void PostRetry() REQUIRES_LOCK(mutex_);
  void RunRetry();
  void RetryNow(InodeId inode) REQUIRES_LOCK(mutex_);

  // lock_transactions.cc: what is done to a record.
  void Transact(Batch& batch);
  Status TryOnce(Batch& batch, bool must_read);
  Status WriteGuard(Batch& batch, const Session& session);
  Result<Session> SessionOf(const Batch& batch) const;
  Plan MakePlan(const Batch& batch);
  static void PurgeDead(const Batch& batch, const LockSession& self, Plan& plan);
  void Apply(const Operation& operation, const LockSession& self, size_t index, Plan& plan);
  void ApplyLock(const Operation& operation, const LockSession& self, size_t index, Plan& plan);
  static void Grant(const LockSession& self, Plan& plan);
  Status Reload(Batch& batch, bool with_session_keys);
  Status CommitPlan(Batch& batch, const Session& session, Plan& plan);
  // Waits before the next try; false when there is no sense in one.
  bool Pause(const Batch& batch, unsigned failures);
  // Whether a session in the table may be gone, as far as the view tells.
  bool Doubtful(const LockTable& table) const;

  // Deadlocks among the owners of this host. Notes that the owner of `wanted` waits, unless that closes a cycle. In
  // the plan's inode its table tells who waits for whom: the edges know nothing of what the plan has handed over.
  static std::vector<uint64_t> BlockersOf(const LockTable& table, const FileLock& lock);
  bool ClosesCycle(const Plan& plan, const FileLock& wanted, Ticket ticket);
  void SetEdge(uint64_t owner, WaitEdge edge) REQUIRES_LOCK(mutex_);
  void DropEdge(uint64_t owner, Ticket ticket) REQUIRES_LOCK(mutex_);

  const Parts parts_;
  std::atomic<Ticket> next_ticket_{1};

  mutable Mutex mutex_;
  CondVar changed_;                        // of epoch_ and ending_
  uint64_t epoch_ GUARDED_BY(mutex_) = 0;  // counts ForgetAll
  bool ending_ GUARDED_BY(mutex_) = false;
  uint64_t guard_revision_ GUARDED_BY(mutex_) = 0;  // of this host's guard key, as it was seen last
  std::unordered_map<InodeId, Inode> inodes_ GUARDED_BY(mutex_);
  std::unordered_map<Ticket, InodeId> tickets_ GUARDED_BY(mutex_);  // of waits that are not over
  std::multimap<uint64_t, WaitEdge> edges_ GUARDED_BY(mutex_);      // by the owner that waits
  std::set<InodeId> refused_ GUARDED_BY(mutex_);                    // that have `refused` operations
  InodeId retried_last_ GUARDED_BY(mutex_);
  bool retry_posted_ GUARDED_BY(mutex_) = false;

  std::atomic<bool> sweep_due_{false};
  std::shared_ptr<void> view_changes_;
  TaskQueue tasks_;  // the last: goes first, and runs what is queued, which may queue more
};

}  // namespace cairnfs::coherence
