// Commits: the record that the rename of a directory leaves, and what is known of the save that it ended.
// docs/commits.md.
//
// The rename's transaction has the record; what takes longer is written after it, on threads of its own: each host adds
// what the save has cost it, and the host that renamed counts what lies below the directory.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/refusals.h"
#include "fs/runs.h"
#include "fs/saves.h"
#include "fs/turns.h"
#include "kv/shared_store.h"

namespace cairnfs::fs {

// All functions: any thread. Those that are told of something do not wait.
class Commits {
 public:
  struct Parts {  // all outlive it
    meta::Namespace& names;
    kv::KvStore& kv;
    Saves& saves;
  };
  // This host, among others; a host alone is none of them.
  struct Self {
    std::string node = std::string(meta::kNodeIdBytes, '\0');
    std::function<std::string()> name = [] { return std::string(); };
    // Whether all that this host has put has its copies, just now.
    std::function<bool()> has_copies = [] { return true; };
  };
  Commits(const Parts& parts, Self self);
  ~Commits() { Stop(); }
  // Adds what this host knows to the commits of others, too. kUnavailable. Once.
  Status WatchOthers(kv::SharedKvStore& store);
  // Looks at the records of all commits, in the background: TellRuns knows of the last ones then, and what is missing
  // of those of this host is added.
  void LookAtRecords();
  // What is not written by then is left out.
  void Stop();
  // While the filesystem is read-only nothing is written.
  void SetReadOnly(bool read_only) { is_read_only_ = read_only; }

  // Has the rename leave a record of each directory that it moves.
  void AddTo(meta::RenameParams& params, const Caller& caller);
  // The rename that left records of these was undone.
  void Withdraw(const std::vector<InodeId>& directories);
  struct Renamed {
    uint32_t uid = 0;           // who renamed
    Clock::duration took{};     // until the answer
    bool waited_for_it = true;  // false: for a ticket, for which no trainer waits
  };
  // The rename has left records of these.
  void NoteCommitted(const std::vector<InodeId>& directories, const Renamed& renamed);
  Refusals& refusals() { return refusals_; }

  // kWithoutNewBytes: they would tell who writes something whether it was there already (docs/security.md).
  enum class Tell { kAll, kWithoutNewBytes };
  // What is known of the directory's commit, as JSON (docs/commits.md). kNoData: it has none.
  Result<std::string> Describe(const Context& context, InodeId directory, Tell what);

  // Of this host; by what was known lately of their policies, and without waiting. While the filesystem is read-only
  // nothing is added.
  std::vector<RunReport> TellRuns();

  // So many records wait to be added to. What finds no place among them is found when the records are looked at again.
  static constexpr size_t kWaitingMax = 4096;
  static constexpr size_t kUnderWayMax = 2;  // of one user
  static constexpr std::chrono::seconds kLookAgainAfter{60};

 private:
  // What is to be done for the record of one directory.
  struct Wanted {
    bool takes_over = false, counts = false;  // what its files have cost; files and bytes
    bool is_news = false;                     // for the runs
    std::optional<Timestamp> durable = {};    // CommitPart::durable
    uint64_t renamed_ns = 0, waited_ns = 0;   // how long the rename took, and its caller waited
  };
  // Parts that lack copies yet.
  struct Uncopied {
    InodeId directory;
    meta::Commit commit;
    std::vector<SaveTallyPtr> taken;
  };
  // `uid`: who renamed.
  void Post(InodeId directory, uint32_t uid, const Wanted& wanted);
  void RunNext();
  void CompleteAll(InodeId directory);
  Status Complete(InodeId directory, const Wanted& wanted);
  // This host's part of the commit, once it has all; nullopt: nothing, or not yet.
  Result<std::optional<meta::CommitPart>> AddOwn(InodeId directory, const meta::Commit& commit, const Wanted& wanted);
  // This host's part of the commit, as it stands.
  struct OwnPart {
    meta::CommitPart part;
    uint64_t revision = 0;  // of its key; 0: there is none
  };
  Result<OwnPart> ReadOwn(InodeId directory, const meta::Commit& commit);
  // Whether something of this host's was written below the directory since its last commit.
  bool WasWrittenBelow(InodeId directory);
  // Notes in the parts that the copies are there, once they are.
  void AwaitCopies();
  // Writes this host's part while the record is the one of `commit`; kConflict: it is another one. `change` is called
  // again when another thread has changed the part meanwhile.
  Status ChangePart(InodeId directory, const meta::Commit& commit,
                    const std::function<void(meta::CommitPart&)>& change);
  void OnChanged(const std::vector<kv::KvEvent>& events);
  void OnMissed();
  // Once there may be room for what found none.
  void LookAgain() REQUIRES_LOCK(mutex_);
  // On the queue. `how`: whether commits of others may have been missed.
  enum class Look { kOwn, kOthersToo };
  void PostLook(Look how);
  void LookAtAll(Look how);
  void FindMissedOfOthers(const std::set<InodeId>& committed, const std::vector<InodeId>& written);

  const Parts at_;
  const Self self_;
  std::atomic<bool> is_read_only_{false};
  std::stop_source stop_;
  const Context until_stop_;
  mutable Mutex mutex_;
  std::map<InodeId, Wanted> wanted_ GUARDED_BY(mutex_);                   // of those that wait and those that run
  Turns<InodeId> waiting_ GUARDED_BY(mutex_){kWaitingMax, kUnderWayMax};  // of wanted_
  bool looks_again_ GUARDED_BY(mutex_) = false;                           // the queue has a task for that
  std::vector<Uncopied> uncopied_ GUARDED_BY(mutex_);  // the queue has a task for them while there are any
  bool refreshes_runs_ GUARDED_BY(mutex_) = false;     // the queue has a task for that
  Clock::time_point runs_refreshed_at_ GUARDED_BY(mutex_);
  Runs runs_;
  std::unique_ptr<TaskQueue> queue_;
  Refusals refusals_;
  std::unique_ptr<kv::KvWatch> watch_;
};

}  // namespace cairnfs::fs
