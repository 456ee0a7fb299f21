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
#include <list>
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
  InodeId directory;                   // what has the old name; else nothing is renamed
  std::string from_parent, from_name;  // parents as paths below the root of the filesystem; of itself: "."
  std::string to_parent, to_name;
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
  static constexpr size_t kResultsMax = 100;             // of one user; the oldest go first
  static constexpr size_t kUnderWayMax = 256;            // in the filesystem, of all users
  static constexpr size_t kTicketsMax = 4096;            // results too
  static constexpr unsigned kOfDirectoryMax = 64;

  struct Parts {  // all outlive it
    meta::Namespace& names;
    kv::KvStore& kv;  // in a cluster one that writes with leases
    std::function<std::optional<CommitFailure>(InodeId directory)> last_refused;
    std::function<void(Done<void>)> sync_names;  // Maintenance::SyncNames
  };
  // Of this host's session, under which it works on tickets; null: it is alone.
  using Lease = std::function<Result<kv::LeaseId>(const Context& context)>;

  explicit Tickets(Parts parts, Lease lease = {});
  ~Tickets() { Stop(); }

  // From now on they are worked on. Once; without it Take refuses with `Refuse`'s reason. `only_user`: this host
  // can act for no other.
  void Start(TicketRunner runner, std::optional<uint32_t> only_user = {});
  void Refuse(std::string why);
  // Ends what runs, and waits for it; it goes on after the next start. Who waits in Take is refused.
  void Stop();
  // The same for a while: for who unmounts, and whom a process in the mount would be in the way of. Waits for what runs
  // for `patience` at most.
  void Pause(Clock::duration time, Clock::duration patience);
  // While it is read-only this host takes no ticket and works on none.
  void SetReadOnly(bool read_only) { is_read_only_ = read_only; }

  struct Request {
    Credentials who;
    InodeId directory;                 // what to rename
    std::optional<InodeId> to_parent;  // nullopt: where it lies already
    std::string to_name;
    unsigned under_way_max = 1;  // waits while as many of this user are under way into that directory
  };
  // `done`: at once on this thread; or later on another, where it has to wait. Who may not rename gets kPermission.
  // kBusy: a ticket for the directory is under way already; or there are too many. kInterrupted: `context` is over.
  // Errors say what would be right. In a cluster it waits for the store.
  void Take(const Request& request, const Context& context, Done<meta::TicketId> done);

  // Waits until it has ended, and gives it once: it is forgotten then. One that is under way when the time of `context`
  // is up is given as such. For who took it, and for root. kNotFound, kPermission; kInterrupted: stopped.
  Result<meta::TicketRecord> Await(const Context& context, meta::TicketId id, uint32_t uid);
  // Where it leads to, below the root of the filesystem.
  std::string PathOf(const Context& context, const meta::TicketRecord& record);
  // What holds it up, as far as this host knows; empty: nothing but bytes that are on their way.
  std::string WhatHoldsUp(meta::TicketId id);

 private:
  struct Known {  // of the store
    meta::TicketId id;
    meta::TicketRecord record;
    uint64_t revision = 0;
    std::string claimed_by = {};  // whose process works on it; empty: nobody's
    uint64_t claim_revision = 0;
  };
  struct All {
    std::vector<Known> tickets;   // the one that was taken first comes first
    uint64_t taken_revision = 0;  // of the last that was
  };
  struct Waiting {
    Request request;
    Context context;
    Done<meta::TicketId> done;
  };
  struct Run {
    uint32_t uid;
    std::thread thread;
    bool has_ended = false;
    std::string holds_up = {};
  };

  Result<All> ReadAll(const Context& context);
  // tickets.cc: how one is taken.
  Result<meta::TicketRecord> Prepare(const Request& request, const Context& context);
  Status CheckNames(const Request& request, const meta::TicketRecord& record, const Context& context);
  // nullopt: it has to wait.
  Result<std::optional<meta::TicketId>> TryTake(const Request& request, const Context& context);
  Status Forget(const kv::KvEntry& entry, const Context& context);
  Result<bool> CheckShares(const Request& request, const meta::TicketRecord& record, const All& all) const;
  void AnswerWaiting() EXCLUDES_LOCK(mutex_);
  void Wake() EXCLUDES_LOCK(mutex_);

  // ticket_work.cc: how they are worked on.
  void Look();
  bool BeginRun(const Known& ticket) EXCLUDES_LOCK(mutex_);
  Status StartRun(const Known& ticket, const std::stop_token& stop_run) EXCLUDES_LOCK(mutex_);
  Result<bool> Claim(const Known& ticket);
  void Work() EXCLUDES_LOCK(mutex_);
  void Reap() EXCLUDES_LOCK(mutex_);
  void WorkOn(meta::TicketId id, const Context& context);
  Result<bool> TryToEnd(meta::TicketId id, const Context& context) EXCLUDES_LOCK(mutex_);
  Result<TicketOutcome> Rename(const meta::TicketRecord& record, const Context& context);
  Result<bool> HasName(const Context& context, const meta::TicketRecord& record, InodeId parent,
                       const std::string& name);
  Status End(const Known& ticket, const TicketOutcome& outcome, const Context& context);
  void GiveBack(meta::TicketId id);

  const Parts at_;
  const Lease lease_;
  const std::string self_;  // random: this process, in claims
  std::atomic<bool> is_read_only_{false};
  std::stop_source stop_;
  const Context until_stop_;
  TicketRunner runner_;  // constant while there are threads
  Mutex mutex_;
  CondVar changed_;                          // anything of these
  bool is_woken_ GUARDED_BY(mutex_) = true;  // there is something to look for
  uint64_t ends_ GUARDED_BY(mutex_) = 0;     // of runs
  std::string refusal_ GUARDED_BY(mutex_);
  std::optional<uint32_t> only_user_ GUARDED_BY(mutex_);
  std::list<Waiting> waiting_ GUARDED_BY(mutex_);
  std::map<meta::TicketId, Run> runs_ GUARDED_BY(mutex_);
  std::stop_source stop_runs_ GUARDED_BY(mutex_);
  Clock::time_point paused_until_ GUARDED_BY(mutex_){};
  std::thread thread_;
};

// Whether who has `own` of the places that are taken, `total` of `max`, may take one more: at most twice as many as are
// free. So nobody takes all.
constexpr bool HasShare(size_t own, size_t total, size_t max) { return total < max && own < 2 * (max - total); }

}  // namespace cairnfs::fs
