// SyncRounds: when names and bytes are made durable, for whom, and what is told of it. How is the publisher's matter.
// docs/architecture.md tells why.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/task_queue.h"
#include "fs/dirty_files.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/publisher.h"
#include "fs/streams.h"

namespace cairnfs::fs {

class SyncRounds {
 public:
  struct Parts {  // all outlive it
    meta::Namespace& names;
    DirtyFiles& files;
    Publisher& publisher;
    TaskQueue& waiters;
  };
  struct Options {
    unsigned interval_ms;
  };
  SyncRounds(const Parts& parts, const Options& options);
  ~SyncRounds();  // stops, if Stop was not called

  // Options::interval_ms from now on. Any thread.
  void SetInterval(unsigned interval_ms);

  // Held by every operation that changes names, by the change of an inode from unchanged to changed, and by changes of
  // a file that are no writes: so that a freeze falls between operations, never into one. Short: never wait for a round
  // while holding it.
  class Operation {
   public:
    explicit Operation(SyncRounds& rounds) : publisher_(rounds.at_.publisher) { publisher_.BeginOperation(); }
    ~Operation() { publisher_.EndOperation(); }
    Operation(const Operation&) = delete;

   private:
    Publisher& publisher_;
  };

  // Asked for operations on names before they take an Operation. Calls `go` once the change may be made: at once, or on
  // a thread of `waiters` after a round, which takes no thread meanwhile. With the error of the last round when rounds
  // fail.
  void WhenAdmitted(NameChange change, Done<void> go);

  // The inode's content differs from its record now. REQUIRES (unchecked): an Operation is held.
  void AddChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) { at_.files.Add(inode); }
  // An inode without link that nobody uses: removed before the next freeze.
  void AddOrphan(const InodePtr& inode);

  // What a round is asked to bring to an end of what was done before the call.
  enum class Scope {
    kAll,     // a sync point: all of it is durable
    kNames,   // but for bytes that find no space: names are durable, and what there is space for. For who makes space
    kClosed,  // as kNames, for files that were closed, or marked with must_publish: those that are being written wait
              // for a round of their own. Only among other hosts
  };
  // Told how it went. False: nobody takes the answer any more, and somebody else is to be told what it says.
  using Answer = std::function<bool(const Status&)>;
  // `answer` once that is so; at once if it is already.
  void Request(Answer answer, Scope scope = Scope::kAll);
  void Request(Done<void> done, Scope scope = Scope::kAll);  // who takes the answer in any case
  // As Request of kAll, for a thread that may wait. Where no round runs or is asked for and little is to be done, the
  // round is run on it: one thread less to wake.
  void RequestHere(Answer answer);
  Status RequestAndWait(Scope scope = Scope::kAll);
  bool NothingPending() const;
  // Runs a last round and ends the thread.
  Status Stop();

  // Files that the last round could not publish, each with why, while others went on: whoever waits for one of them, or
  // for all, is to be told. Takes inodes' locks.
  std::map<InodeId, Error> FailedFiles() { return at_.files.Failed(); }

  uint64_t rounds_total() const { return rounds_total_.load(); }
  uint64_t requests_total() const { return requests_total_.load(); }
  std::string last_error() const;  // of the last round; empty when it went well
  bool failing() const;            // the last round could not be finished: nothing becomes durable at present
  // Why, where that is a failure of the disk, which nobody outlives by waiting: not for want of space, or of other
  // hosts, among which a rename's own round tells. Cheap while there is none.
  std::optional<Error> DiskFailure() const;

 private:
  struct Waiter {
    Scope scope;
    Answer answer;
  };
  struct Postponed {
    NameChange change;
    Done<void> go;
  };
  void Run();
  bool MayRunHere() REQUIRES_LOCK(mutex_);
  void BeginRound() REQUIRES_LOCK(mutex_);     // REQUIRES: !has_runner_
  void RunRound(std::vector<Waiter> waiters);  // REQUIRES (unchecked): this thread called BeginRound
  // Asks for a round. Whether the change may be made; nullopt: not before that has ended.
  std::optional<Status> TryAdmit(NameChange change) REQUIRES_LOCK(mutex_);
  void LetInPostponed();
  void NoteOutcome(const Status& flushed, const Status& status) REQUIRES_LOCK(mutex_);
  Status RunOnce(DirtyFiles::Which which, bool is_awaited);
  Status FinishOpen(bool is_awaited);
  void RemoveOrphans();

  const Parts at_;
  std::atomic<unsigned> interval_ms_;

  mutable Mutex mutex_;  // before that of DirtyFiles
  CondVar wake_;
  std::vector<Waiter> waiters_ GUARDED_BY(mutex_);
  std::vector<InodeId> orphans_ GUARDED_BY(mutex_);
  bool kicked_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false;
  bool has_runner_ GUARDED_BY(mutex_) = false;  // a thread runs a round, or tells how it went: no other begins one
  CondVar runner_left_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Postponed> postponed_ GUARDED_BY(mutex_);  // until the next round has ended
  std::optional<Error> failure_ GUARDED_BY(mutex_);      // of the last round, when it could not be finished
  std::string last_error_ GUARDED_BY(mutex_);

  std::atomic<bool> disk_failed_{false};  // failure_ is one of the disk
  std::atomic<bool> has_loss_{false};     // there is a loss that nobody was told
  std::atomic<uint64_t> rounds_total_{0}, requests_total_{0};
  std::thread thread_;
};

}  // namespace cairnfs::fs
