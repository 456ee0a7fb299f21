// Tickets: deferred commits (docs/commits.md, "Deferred commits"). Who asks for one gets a ticket at once; the
// directory gets its final name when all below it is durable, and the result waits for who asks with the ticket.
//
// A ticket is a record in the store (meta/ticket_records.h). One host works on it: that one renames, by a process of
// its own with the rights of who asked, as rename(2) would; so a deferred commit is an ordinary one, later. What is
// under way is found in the store and in no other place: so it goes on after a restart, and on another host once the
// session of the host that worked on it has ended. docs/decisions/deferred-commits.md.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "meta/namespace.h"
#include "meta/ticket_records.h"

namespace cairnfs::fs {

// A rename that is to be made with these rights and no others.
struct TicketJob {
  Credentials who;
  InodeId directory;  // what has the old name; else nothing is renamed
  struct Place {
    InodeId parent;
    std::string parent_path = {};  // below the root of the filesystem; of itself: "."
    std::string name;
  };
  Place from, to;
};
struct TicketOutcome {
  enum class Kind {
    kRenamed,
    kRefused,
    kLater,  // it may have run, or may run when it is tried again: a host or the disk is away, the process was ended
  };
  Kind kind = Kind::kLater;
  std::string reason = {};  // why not
};
// Makes it. Ends soon after the context has expired. May be called by several threads at once.
using TicketRunner = std::function<TicketOutcome(const Context& context, const TicketJob& job)>;

// All functions: any thread.
class Tickets {
 public:
  static constexpr std::chrono::hours kKeptFor{7 * 24};  // a result; and so long a commit is tried
  static constexpr size_t kUnderWayMax = 256;            // in the filesystem, of all users
  static constexpr size_t kResultsMax = 64;              // of one user; the oldest go first
  static constexpr size_t kResultsOfAllMax = 1024;       // past that the oldest of who has most go
  static constexpr unsigned kOfDirectoryMax = 64;

  struct Parts {  // all outlive it
    meta::Namespace& names;
    kv::KvStore& kv;  // in a cluster one that writes with leases
    std::function<std::optional<meta::RefusedCommit>(InodeId directory)> last_refused;
    std::function<void(Done<void>)> sync_names;  // Maintenance::SyncNames
    std::chrono::seconds rename_max;             // that one rename waits for what is not durable yet
  };
  // This host among others; a host alone is none of them.
  struct Self {
    std::string node = {};
    // Has the transaction compare that the session lives under which this host works on tickets; gives its lease.
    std::function<Result<kv::LeaseId>(kv::Transaction& transaction)> join = {};
  };

  Tickets(Parts parts, Self self);
  ~Tickets() { Stop(); }

  // Of a host alone, at its start, before any other call. Where bytes that were accepted found no room, or were lost,
  // before that, tickets that were under way fail: whether theirs were among them nobody knows any more.
  Status FailWhereBytesMayLack();
  // From now on they are worked on. Once; with an error Take refuses with that. `only_user`: this host can act for no
  // other.
  void Start(Result<TicketRunner> runner, std::optional<uint32_t> only_user = {});
  // Ends what runs, and waits for it; it goes on after the next start. Who waits in Take or Await gets kInterrupted.
  void Stop();
  // The same for a while: for who unmounts, and whom a process in the mount would be in the way of. Waits for what runs
  // for `patience` at most.
  void Pause(Clock::duration time, Clock::duration patience);
  // While it is read-only this host takes no ticket and works on none. Ends what runs, as Pause.
  void SetReadOnly(bool read_only);

  struct Request {
    Credentials who;
    InodeId directory;                 // what to rename
    std::optional<InodeId> to_parent;  // nullopt: where it lies already
    std::string to_name;
    unsigned under_way_max = 1;  // waits while as many of this user are under way into that directory
  };
  // Blocks while it has to wait for others to end, until the time of `context` is up: then kBusy. So is it where a
  // ticket for the directory is under way already, or too many are. kPermission: who asks may not rename, or not enter
  // the directories above. kInterrupted: `context` was stopped. Errors say what would be right; after that of a store
  // that did not answer a ticket may be under way all the same. REQUIRES (unchecked): a change that makes names was let
  // in (Names::WhenAdmitted).
  Result<meta::TicketId> Take(const Request& request, const Context& context);

  // Waits until it has ended, and gives it once: it is forgotten then, for good. One that is under way when the time of
  // `context` is up is given as such. For who took it, and for root. kNotFound, kPermission; kInterrupted: stopped.
  Result<meta::TicketRecord> Await(const Context& context, meta::TicketId id, uint32_t uid);
  // Where it leads to, below the root of the filesystem. nullopt: who asks may not list all directories above.
  std::optional<std::string> PathOf(const Context& context, const meta::TicketRecord& record, const Credentials& who);
  // What holds it up, as far as this host knows; empty: nothing but bytes that are on their way.
  std::string WhatHoldsUp(meta::TicketId id);
  // Whether this host is just trying to rename the directory for a ticket. Does not wait.
  bool IsRenaming(InodeId directory) const;
  // kBusy: a deferred commit of the directory is under way, and so nobody may take it away.
  Status CheckMayGo(const Context& context, InodeId directory);

 private:
  struct Known {  // of the store
    meta::TicketId id;
    meta::TicketRecord record;
    uint64_t revision = 0;
    std::string claimant = {};  // the node that works on it
    uint64_t claim_revision = 0;
  };
  struct All {
    std::vector<Known> tickets;   // the one that was taken first comes first
    uint64_t taken_revision = 0;  // of the last that was
  };
  // What this host works on, or has tried.
  struct Work {
    uint32_t uid;
    InodeId directory;
    uint64_t claim_revision;
    std::thread thread;  // joinable: it runs, or has just ended
    bool has_ended = false;
    Clock::time_point next{};  // not to be tried before
    std::string holds_up = {};
    bool is_running() const { return thread.joinable() && !has_ended; }
  };

  static bool IsExpired(const meta::TicketRecord& record);
  Result<All> ReadAll(const Context& context);
  // tickets.cc: how one is taken.
  Status CheckMayTake(const Request& request) EXCLUDES_LOCK(mutex_);
  Result<meta::TicketRecord> Prepare(const Request& request, const Context& context);
  Status CheckNames(const meta::TicketRecord& record, const Context& context);
  // nullopt: it has to wait.
  Result<std::optional<meta::TicketId>> TryTake(unsigned under_way_max, meta::TicketRecord record,
                                                const Context& context);
  Result<bool> CheckShares(unsigned under_way_max, const meta::TicketRecord& record, const All& all) const;
  Status Forget(const kv::KvEntry& entry, const Context& context);
  uint64_t ends() EXCLUDES_LOCK(mutex_);
  void AwaitAnEnd(const Context& context, uint64_t ends_before) EXCLUDES_LOCK(mutex_);
  void Wake() EXCLUDES_LOCK(mutex_);

  // ticket_work.cc: how they are worked on.
  void LookAgainAndAgain() EXCLUDES_LOCK(mutex_);
  void Look() EXCLUDES_LOCK(mutex_);
  void ForgetExpired(const All& all);
  void LeaveAll() EXCLUDES_LOCK(mutex_);
  bool BeginRun(const Known& ticket) EXCLUDES_LOCK(mutex_);
  bool MayRunNow(const Known& ticket) REQUIRES_LOCK(mutex_);
  Result<std::optional<uint64_t>> Claim(const Known& ticket);
  void GiveBack(meta::TicketId id, uint64_t claim_revision);
  void Reap() EXCLUDES_LOCK(mutex_);
  bool IsIdle() const REQUIRES_LOCK(mutex_);
  void Run(meta::TicketId id, uint64_t claim_revision, const Context& context) EXCLUDES_LOCK(mutex_);
  Result<TicketOutcome> TryToEnd(meta::TicketId id, uint64_t claim_revision, const Context& context);
  Result<TicketOutcome> Rename(const meta::TicketRecord& record, const Context& context);
  Result<TicketOutcome> RenameByProcess(const meta::TicketRecord& record, const Context& context);
  Result<bool> HasName(const Context& context, const meta::TicketRecord& record, InodeId parent,
                       const std::string& name);
  Status SyncNames(const Context& context);
  Status End(const Known& ticket, const TicketOutcome& outcome);

  const Parts at_;
  const Self self_;
  std::atomic<bool> is_read_only_{false};
  std::stop_source stop_;
  const Context until_stop_;
  TicketRunner runner_;  // constant while there are threads
  mutable Mutex mutex_;
  CondVar changed_;                          // anything of these
  bool is_woken_ GUARDED_BY(mutex_) = true;  // there is something to look for
  uint64_t ends_ GUARDED_BY(mutex_) = 0;     // of runs
  std::optional<Error> refusal_ GUARDED_BY(mutex_);
  std::optional<uint32_t> only_user_ GUARDED_BY(mutex_);
  std::map<meta::TicketId, Work> work_ GUARDED_BY(mutex_);
  std::map<uint32_t, Clock::time_point> rests_ GUARDED_BY(mutex_);  // users of whom none is begun before
  std::stop_source stop_runs_ GUARDED_BY(mutex_);
  Clock::time_point paused_until_ GUARDED_BY(mutex_){};
  std::thread thread_;
};

}  // namespace cairnfs::fs
