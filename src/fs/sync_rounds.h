// SyncRounds: when a round makes names and bytes durable, and who is told how it went. The publisher knows how to do
// it. docs/architecture.md says why there are rounds.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
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

  // Held by each operation that changes names, by the first change of an unchanged inode, and by changes of a file that
  // are not writes. So a freeze falls between two operations, never into one. Hold it briefly: waiting for a round
  // while holding it is a deadlock.
  class Operation {
   public:
    explicit Operation(SyncRounds& rounds) : publisher_(rounds.at_.publisher) { publisher_.BeginOperation(); }
    ~Operation() { publisher_.EndOperation(); }
    Operation(const Operation&) = delete;

   private:
    Publisher& publisher_;
  };

  // An operation on names calls this before it takes an Operation. Calls `go` once the change may be made: at once, or
  // after a round, on a thread of `waiters`. No thread waits meanwhile. When rounds fail, `go` gets the error of the
  // last.
  void WhenAdmitted(NameChange change, Done<void> go);
  // The same for a thread that may wait, and holds no Operation. It needs no thread of `waiters`, all of which may wait
  // for what this one is at. kInterrupted: the context has expired.
  Status WaitUntilAdmitted(const Context& context, NameChange change);

  // The inode's content differs from its record now. REQUIRES (unchecked): an Operation is held.
  void AddChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) { at_.files.Add(inode); }
  // A file was closed that has so many bytes that are not in a record. Any thread; waits for nothing.
  void NoteClosed(uint64_t bytes);
  // As Publisher::DropFreezePoints.
  void DropFreezePoints() { at_.publisher.DropFreezePoints(); }
  // The inode has no link and no user. It is removed before the next freeze.
  void AddOrphan(const InodePtr& inode);

  // How much of what was done before the call the round must finish.
  enum class Scope {
    kAll,     // a sync point: all of it is durable
    kCommit,  // the same, for the rename of a directory
    kNames,   // all but bytes that find no space: for a caller that is about to make space
    kClosed,  // as kNames, but only files that were closed, or have must_publish set. Files that are still written wait
              // for another round. Among several hosts only
  };
  // Gets the outcome. Returns false if its caller has given up: then the next one is told instead.
  using Answer = std::function<bool(const Status&)>;
  // For who waits for all or for what is closed, and would be told that bytes found no room.
  struct MakeRoom {
    std::function<uint64_t()> count;  // how often room was made
    // Runs `then` once room was made after that count, on another thread. False: nobody can make some.
    std::function<bool(uint64_t count, std::function<void(bool has_made)> then)> then;
  };
  void SetMakeRoom(MakeRoom make_room) { make_room_ = std::move(make_room); }  // before any request
  // The files and directories that a rename moves, or the file that a close waits for.
  using Sources = std::vector<meta::Attr>;
  // Which of the files lie at or below the sources. Among several hosts, where each file is published for itself.
  using FindBelow = std::function<Result<std::set<InodeId>>(const Sources& sources, const std::vector<InodeId>& files)>;
  void SetFindBelow(FindBelow find_below) { find_below_ = std::move(find_below); }  // before any request
  // Calls `answer` when that is done: at once, if it is already. `sources`: what the caller needs. While time is short
  // those of a kCommit go before all else, and those of a kClosed are answered for when they are durable.
  void Request(Answer answer, Scope scope = Scope::kAll, Sources sources = {});
  void Request(Done<void> done, Scope scope = Scope::kAll);  // for a caller that never gives up
  // As Request of kAll, for a thread that may wait. If no other round runs or is asked for, and there is little to do,
  // the round runs on this thread: that saves waking another.
  void RequestHere(Answer answer);
  Status RequestAndWait(Scope scope = Scope::kAll);
  bool NothingPending() const;
  uint64_t UnwrittenBytes() const { return at_.publisher.UnwrittenBytes(); }
  std::map<InodeId, uint64_t> Unflushed() const { return at_.publisher.Unflushed(); }
  // Time is short: from now on what is closed becomes durable first, and kCommit and kNames wait for no other files.
  // Among several hosts it does so in portions, and a round that runs with other files is cut short. Any thread.
  void TakeClosedFirst() {
    takes_closed_first_ = true;
    CutShort();
  }
  // While one lives, a round that takes all files makes what is closed durable before the others, in the same way.
  // Outlived by the rounds. Any thread.
  class ClosedFirst {
   public:
    explicit ClosedFirst(SyncRounds& rounds) : rounds_(rounds) {
      rounds_.closed_first_count_++;
      rounds_.CutShort();
    }
    ~ClosedFirst() { rounds_.closed_first_count_--; }
    ClosedFirst(const ClosedFirst&) = delete;

   private:
    SyncRounds& rounds_;
  };
  // Runs a last round and ends the thread.
  Status Stop();

  // Files that the last round could not publish, each with the reason; the others were published. Tell those who wait
  // for such a file, or for all. Takes inodes' locks.
  std::map<InodeId, Error> FailedFiles() { return at_.files.Failed(); }

  uint64_t rounds_total() const { return rounds_total_.load(); }
  uint64_t requests_total() const { return requests_total_.load(); }
  std::string last_error() const;  // of the last round; empty when it went well
  bool failing() const;            // the last round could not be finished: nothing becomes durable at present
  // The reason, if it is a failure of the disk, which does not end by waiting. Lack of space is none, nor are hosts
  // that are away: a rename learns of those by its own round. Cheap while there is none.
  std::optional<Error> DiskFailure() const;

 private:
  static constexpr uint64_t kPortionBytesMin = 8 * kMiB, kPortionBytesMax = 256 * kMiB;  // but for one large file
  struct Waiter {
    Scope scope;
    Answer answer;
    Sources sources;
  };
  struct Postponed {
    NameChange change;
    Done<void> go;
  };
  void Run();
  bool MayRunHere() REQUIRES_LOCK(mutex_);
  void BeginRound() REQUIRES_LOCK(mutex_);  // REQUIRES: !has_runner_
  // The same answer, but that a lack of room is not told while room can be made: then another round is asked for.
  Answer OnceThereIsRoom(Answer answer, Scope scope, const Sources& sources);
  void RequestOnce(Answer answer, Scope scope, Sources sources);
  bool IsHurried() const { return takes_closed_first_ || closed_first_count_ > 0; }
  static bool IsCommit(const Waiter& waiter);  // whose sources are known
  bool NeedsOpen(const Waiter& waiter) const;  // also files that are open for writing
  // The round that runs ends, and begins again with what goes first now.
  void CutShort() EXCLUDES_LOCK(mutex_);
  Context RoundContext() const EXCLUDES_LOCK(mutex_);
  void BeginAgain(std::vector<Waiter> waiters) EXCLUDES_LOCK(mutex_);
  // The others are for the next round.
  void KeepOnly(std::vector<Waiter>& waiters, const std::function<bool(const Waiter&)>& keeps) EXCLUDES_LOCK(mutex_);
  // These leave the waiters for whom it was enough.

  // Commits go first. After them one portion of what is closed has its turn, whatever commits come meanwhile.
  Status RunHurried(std::vector<Waiter>& waiters, const Publisher::Round& round);
  // nullopt: there are none, or it cannot be known what lies below.
  std::optional<Status> RunCommits(std::vector<Waiter>& waiters);
  // Among several hosts in portions.
  Status RunClosed(std::vector<Waiter>& waiters, const Publisher::Round& first, const Publisher::Round& others);
  // Of closes whose files are published.
  void AnswerPublished(std::vector<Waiter>& waiters);
  void RunRound(std::vector<Waiter> waiters);  // REQUIRES (unchecked): this thread called BeginRound
  // Asks for a round. Whether the change may be made; nullopt: not before that has ended.
  std::optional<Status> TryAdmit(NameChange change) REQUIRES_LOCK(mutex_);
  void LetInPostponed();
  void NoteOutcome(const Status& flushed, const Status& status) REQUIRES_LOCK(mutex_);
  Status RunOnce(const DirtyFiles::Selection& selection, const Publisher::Round& round);
  Status FinishLast(const Publisher::Round& round);
  Status FinishOpen(Publisher::Round round);
  void RemoveOrphans();

  const Parts at_;
  MakeRoom make_room_ = {};
  FindBelow find_below_;
  std::atomic<unsigned> interval_ms_;

  mutable Mutex mutex_;  // before that of DirtyFiles
  CondVar wake_;
  std::vector<Waiter> waiters_ GUARDED_BY(mutex_);
  std::vector<InodeId> orphans_ GUARDED_BY(mutex_);
  bool kicked_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false;
  bool has_runner_ GUARDED_BY(mutex_) = false;  // a thread runs a round, or tells how it went: no other begins one
  CondVar runner_left_;
  std::stop_source cut_short_ GUARDED_BY(mutex_);  // of the round that runs
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Postponed> postponed_ GUARDED_BY(mutex_);  // until the next round has ended
  std::optional<Error> failure_ GUARDED_BY(mutex_);      // of the last round, when it could not be finished
  std::string last_error_ GUARDED_BY(mutex_);

  std::atomic<bool> disk_failed_{false};  // failure_ is one of the disk
  std::atomic<bool> takes_closed_first_{false};
  std::atomic<unsigned> closed_first_count_{0};  // of ClosedFirst
  std::atomic<bool> has_loss_{false};            // there is a loss that nobody was told
  std::atomic<uint64_t> rounds_total_{0}, requests_total_{0};
  // Of the thread that runs the round.
  uint64_t portion_bytes_ = kPortionBytesMin;
  bool commits_were_last_ = false;  // a portion of what is closed has its turn now
  std::thread thread_;
};

}  // namespace cairnfs::fs
