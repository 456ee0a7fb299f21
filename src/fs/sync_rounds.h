// SyncRounds: makes names and bytes durable together, in order. docs/architecture.md tells how and why.
//
// Invariant: what FlushFrozen writes names only chunks that ChunkStore::Sync has made durable before, and holds for
// each file changed before the freeze a record with every byte accepted before it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <thread>

#include "base/task_queue.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/streams.h"

namespace cairnfs::fs {

class ClusterHost;

// Among other hosts (`host` is given) names need no round: each of their transactions is durable and visible when it
// returns. A round then drains what it owes, has the chunks synced, and publishes the records, each with a compare on
// the one that it is based on (shared_rounds.cc).
class SyncRounds {
 public:
  struct Options {
    unsigned interval_ms;
  };
  // `parts` outlive it.
  SyncRounds(const FileSystem::Parts& parts, ClusterHost* host, Streams& streams, InodeTable& table, TaskQueue& waiters,
             const Options& options);
  ~SyncRounds();  // REQUIRES: Stop() returned

  // Options::interval_ms from now on. Any thread.
  void SetInterval(unsigned interval_ms);

  // Held (shared) by every operation that changes names, by the change of an inode from unchanged to changed, and by
  // changes of a file that are no writes: so that a freeze falls between operations, never into one. Short: never wait
  // for a round while holding it. Nothing among other hosts.
  class Operation {
   public:
    explicit Operation(SyncRounds& rounds);
    ~Operation();
    Operation(const Operation&) = delete;

   private:
    SyncRounds& rounds_;
  };

  // Asked for operations on names before they take an Operation: names that are not flushed yet are kept in memory, and
  // this bounds how much. Calls `go` once the change may be made: at once below the bound; else on a thread of
  // `waiters` after a round, which takes no thread meanwhile. With the error of the last round when rounds fail.
  // What removes names is let in for longer, because it makes room.
  void WhenAdmitted(NameChange change, Done<void> go);

  // The inode's content differs from its record now. REQUIRES: an Operation is held.
  void AddChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
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

  // Ends what the round or the next ones would do for this file: its bytes can never be published. REQUIRES: only among
  // other hosts.
  static void Forsake(Streams& streams, const InodePtr& inode, const Error& why) REQUIRES_LOCK(inode->mutex);

  // Files that the last round could not publish, each with why, while others went on: whoever waits for one of them, or
  // for all, is to be told. Takes inodes' locks.
  std::map<InodeId, Error> LeftBehind();

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
  void RunRound(std::vector<Waiter> waiters);  // REQUIRES: this thread called BeginRound
  // Asks for a round. Whether the change may be made; nullopt: not before that has ended.
  std::optional<Status> TryAdmit(NameChange change) REQUIRES_LOCK(mutex_);
  void LetInPostponed();
  void NoteOutcome(const Status& status) REQUIRES_LOCK(mutex_);
  Status RunOnce(bool everything);
  void RemoveOrphans();
  void Open(bool everything);  // freezes and takes over what is owed
  Status Finish();             // drains, publishes, syncs, flushes what Open took over
  void LetGo(const InodePtr& inode);
  bool DiscardIfGone(const InodePtr& inode);
  Status WaitDrained(const InodePtr& inode);
  Status Publish(const InodePtr& inode, std::vector<kv::KvWrite>& writes, std::vector<store::ChunkPin>& pins);
  // The record of what is stored of the file; on failure the file comes again in the next round.
  Result<meta::FileRecord> MakeRecord(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void DrainOwed();
  bool HasUnflushedNames() const { return local_kv_ != nullptr && local_kv_->HasUnflushed(); }

  // shared_rounds.cc
  struct SharedItem {
    InodePtr inode;
    std::optional<meta::FileRecord> record;  // nullopt: nothing was written, and the mark alone goes
    uint64_t base_revision = 0, session = 0;
    Durability level = Durability::kReplicated;
    bool marks = false, unmarks = false;  // this host's mark is put, or taken away
    std::string failure;                  // that the mark tells
    std::vector<meta::Mark> clears;       // dead marks that are taken away
    std::vector<store::ChunkPin> pins;
  };
  Status FinishShared();
  Status PublishShared(std::vector<SharedItem> items);
  Status PublishAt(Durability level, std::vector<SharedItem> items);
  Result<SharedItem> Prepare(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The publish of a file ends by what becomes of the transaction that it is in:
  //   it ran                                Complete
  //   a compare failed                      Reconcile, and tried alone in the same round
  //   a key cannot be read                  the same; where it was alone LeaveBehind
  //   the session is gone                   Abandon: nobody may publish it any more
  //   refused, as for want of space         GiveBack
  //   it may have run, or may run yet       unsettled_; Settle finds out before the next round, and what is not sent
  //                                         by then is given back
  struct Unsettled {
    kv::Transaction transaction;
    uint64_t session = 0;
    std::vector<SharedItem> items;  // none: it puts marks
  };
  kv::Transaction MarkTransaction(std::span<const InodePtr> files, uint64_t session);
  // Puts this host's mark of each of them. An error: it is not known whether that ran, and no round may go on before it
  // is.
  Status MarkFiles(std::span<const InodePtr> files);
  Status MarkClosed();
  void TellFailures();
  void NoteFailure(const InodePtr& inode, const Error& why) REQUIRES_LOCK(inode->mutex);
  static void Note(const SharedItem& item, bool SharedContent::*state, bool is_so);
  kv::Transaction TransactionOf(std::span<const SharedItem> items);
  // Publishes those that nothing stands against; appends to `conflicts` those that are to be tried again. Ends with the
  // first transaction that is unsettled. The first error.
  Status CommitBatches(std::vector<SharedItem>& items, bool one_by_one, std::vector<SharedItem>& conflicts);
  // Once it is known what became of the transaction.
  void Conclude(std::vector<SharedItem>& items, const Result<uint64_t>& revision, std::vector<SharedItem>& conflicts);
  // Until it is known what became of a transaction whose answer was lost, nothing of its files may be published, which
  // would be laid over what others wrote after these.
  Status Settle();
  void Complete(SharedItem& item, uint64_t revision);
  static void Withdraw(SharedItem& item, Content& content);  // as if it had not been prepared
  // To the next round, after this error.
  void GiveBack(SharedItem& item, const Error& why);
  void GiveBackAll(std::span<SharedItem> items, const Error& why);
  void GiveBackOwed(const Error& why);
  void NoteShortage(const InodePtr& inode, const Error& error) REQUIRES_LOCK(inode->mutex);
  std::optional<Error> WhyLeftBehind(InodeId id) EXCLUDES_LOCK(mutex_);
  void LeaveBehind(SharedItem& item, const Error& why);  // to the next round, which others need not wait for
  // Ends what was owed of the file and, unless they were accepted under a later session, gives up its bytes. is_needed
  // false: an error only for who has the file open.
  void Abandon(const InodePtr& inode, uint64_t session, const Error& why, bool is_needed = true);
  // False when it was given up since with its session; what there is by now was accepted under another one, and is owed
  // to a round of its own.
  static bool IsStillOwed(const SharedItem& item, const Content& content);
  // After a conflict: takes over what another host published. nullopt: nothing is left to publish, or it cannot be,
  // which is noted.
  Result<std::optional<SharedItem>> Reconcile(SharedItem item);

  kv::KvStore& kv_;
  kv::LocalKvStore* const local_kv_;  // null among other hosts
  ClusterHost* const host_;           // null on one host
  store::ChunkStore& chunks_;
  store::LocalChunkStore& local_chunks_;
  meta::Namespace& names_;
  Streams& streams_;
  InodeTable& table_;
  TaskQueue& waiters_queue_;
  std::atomic<unsigned> interval_ms_;

  // The gate: a freeze takes it exclusively. The turnstile keeps a stream of operations from shutting a freeze out.
  Mutex turnstile_;
  std::shared_mutex gate_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::vector<Waiter> waiters_ GUARDED_BY(mutex_);
  std::vector<InodePtr> changed_ GUARDED_BY(mutex_);
  std::vector<InodeId> orphans_ GUARDED_BY(mutex_);
  std::set<InodeId> left_behind_ GUARDED_BY(mutex_);  // and perhaps published or given up since
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
  std::atomic<bool> open_{false};         // a round was opened and is not finished; set by the round

  // Of the thread that runs the round.
  bool is_awaited_ = false;     // the round that runs is for a sync point
  std::vector<InodePtr> owed_;  // and these are still to be published
  std::vector<InodePtr> published_;
  std::optional<Unsettled> unsettled_;  // no round goes on before it is settled
  std::vector<InodePtr> failed_;        // by this round, and their marks do not tell it yet
  uint64_t operations_ = 0;             // names transactions
  std::optional<Error> shortage_;       // of the last round: bytes of some file had no space and wait for the next
  std::optional<Error> loss_;  // bytes of some file could not be stored: whoever waits for a round next is told

  std::atomic<uint64_t> rounds_total_{0}, requests_total_{0};
  std::thread thread_;
};

}  // namespace cairnfs::fs
