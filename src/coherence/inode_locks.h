// InodeLocks: what the processes of this host ask of the locks of one inode, and what that takes. A state machine
// without threads, store or clock: ClusterLocks asks it for the next piece of work, does that, and says how it ended.
// There is one piece at a time.
//
// What is held is kept here, and the host's record in the store is a copy of it. Freeing changes what is held at once,
// and the record is behind until it is written. A lock is held once the record that has it is written.
//
// Not thread-safe: ClusterLocks guards it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "coherence/file_locks.h"
#include "coherence/lock_cycle.h"
#include "coherence/lock_table.h"

namespace cairnfs::coherence {

struct LockAnswer {
  LockOutcome outcome = LockOutcome::kGranted;
  std::optional<FileLock> holder;  // of what stands in the way
};

struct LockOperation {
  enum class Kind { kTry, kWait, kCancel, kUnlock, kReleaseHandle, kTest };
  using Done = std::function<void(Result<LockAnswer>)>;
  Kind kind;
  FileLock lock;
  LockTicket ticket = 0;         // kWait, kCancel
  Done done;                     // may be empty
  unsigned tries = 0;            // kTry: that were refused
  uint64_t since = UINT64_MAX;   // kWait: as WaitingLock
  bool may_close_cycle = false;  // kWait: to be looked at once other hosts see the wait
  LockCycle cycle{};             // kWait: that it closes, as found last
};

struct LockWork {
  enum class Step {
    kIdle,
    kRead,       // the records of all hosts
    kFindCycle,  // that `wanted`, which waits as `ticket`, closes
    kCommit,     // this host's record
    kRest,       // before the next work
  };
  Step step = Step::kIdle;
  bool is_for_first = false;         // kRead: the first of the queue asked for it
  uint64_t losses = 0;               // kRead: how often the watch had lost changes before
  std::chrono::nanoseconds rest{0};  // kRest
  FileLock wanted{};                 // kFindCycle
  // kCommit:
  HostLocks record{};
  bool takes = false;                        // a lock: compares that no other host's record has changed after `as_of`
  uint64_t as_of = 0;                        // a revision
  std::optional<LockOperation> operation{};  // to be answered with `answer`
  LockAnswer answer{};
  LockTicket ticket = 0;  // of a wait that takes its lock, is announced, or is refused
  LockCycle cycle{};      // of the wait that is refused: compares that it still stands
};

class InodeLocks {
 public:
  // Of what is over, to be sent when no mutex is held. `done` is called once for each operation.
  using Answers = std::vector<std::pair<LockOperation::Done, Result<LockAnswer>>>;
  struct Now {
    bool ending = false;               // the mount ends: nobody waits
    std::chrono::nanoseconds late{0};  // how late the last rest ended
    // Whether the owner holds a record lock on any file. Nobody waits for one that does not.
    std::function<bool(const LockOwner&)> is_holder;
  };

  explicit InodeLocks(const cluster::NodeId& self) : self_(self), known_(self) {}

  bool is_asked() const { return !queue_.empty(); }
  bool waits() const { return !waiting_.empty(); }
  bool is_behind() const { return behind_; }
  const std::vector<FileLock>& held() const { return known_.own.held(); }
  const std::vector<LockOperation>& waiting() const { return waiting_; }  // the oldest first
  uint64_t as_of() const { return known_.as_of(); }                       // of the others' records

  void Ask(LockOperation operation) { queue_.push_back(std::move(operation)); }
  LockWork Next(const Now& now, Answers& answers);

  // How the work ended. A refusal that is noted may leave it stalled: then it does what is asked for, and no more.
  void NoteRead(const LockWork& work, const Result<kv::KvRange>& records, Answers& answers);
  void NoteCycle(const LockWork& work, LockCycle cycle);  // empty: none
  void NoteCommitted(LockWork& work, Answers& answers);
  void NoteRefused(LockWork& work, const Error& error, Answers& answers);
  bool is_stalled() const { return stalled_; }
  void GoOn() { stalled_ = false; }
  // Records of a cycle changed before the wait that closes it was refused, so often in a row. Then it looks for no
  // cycle before LookAgain: each look reads the locks of all files.
  unsigned vain_looks() const { return vain_looks_; }
  bool rests_from_looks() const { return rests_from_looks_; }
  void LookAgain() { rests_from_looks_ = false; }

  // A watch tells of the others' records: all changes up to the revision, or that it does not know.
  void NoteChanges(const std::vector<kv::KvEvent>& events, uint64_t revision);
  void NoteChangesLost();

  // Ends all waits.
  void EndWaits(const Result<LockAnswer>& answer, Answers& answers);
  // The session is lost: ends all that is asked for, and holds nothing.
  void Forget(const Error& why, Answers& answers);
  // The answer to what could not be done.
  static Result<LockAnswer> AnswerWithout(const LockOperation& operation, const Error& error);

 private:
  bool Looks() const;  // whether the first of the queue depends on what other hosts hold
  // For the first of the queue. nullopt: it was answered, or waits.
  std::optional<LockWork> Begin(const Now& now, Answers& answers);
  std::optional<LockWork> BeginLock(const Now& now, Answers& answers);
  std::optional<LockWork> BeginWait(const Now& now, Answers& answers);
  // Answers the first of the queue, once the record is written where it is behind.
  std::optional<LockWork> End(LockAnswer answer, Answers& answers);
  // A lock for the first of the queue, or for one that waits (`ticket`).
  std::optional<LockWork> Take(const LockOperation& operation, LockTicket ticket, Answers& answers);
  // Finds the deadlock that a wait makes, or refuses the wait that makes one.
  std::optional<LockWork> RefuseDeadlock();
  LockWork Read() const;
  LockWork Write(LockTicket without = 0) const;  // the record, without one of those that wait
  LockOperation TakeFirst();
  LockOperation* FindWait(LockTicket ticket);  // null: it is over
  std::optional<LockOperation> TakeWait(LockTicket ticket);
  bool EndWait(LockTicket ticket, Result<LockAnswer> answer, Answers& answers);

  const cluster::NodeId self_;
  KnownLocks known_;
  std::deque<LockOperation> queue_;  // one for each request of the kernel that waits, and for each file that is closed
  std::vector<LockOperation> waiting_;  // found somebody in the way
  bool must_read_ = false;              // `known_` is out of date
  uint64_t losses_ = 0;                 // how often the watch lost changes
  bool is_fresh_ = false;               // the others' records were read for the first of the queue
  bool behind_ = false;                 // the record is not as what is held and who waits
  bool stalled_ = false;
  bool has_looked_ = false;  // for a deadlock, and not begun anything of the queue since
  unsigned vain_looks_ = 0;
  bool rests_from_looks_ = false;
};

}  // namespace cairnfs::coherence
