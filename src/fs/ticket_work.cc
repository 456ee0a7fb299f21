// How tickets are worked on: one thread looks for those that nobody works on, and each has a thread of its own, which
// mostly waits for a rename.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/failpoint.h"
#include "base/fair_share.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/start_thread.h"
#include "fs/paths.h"
#include "fs/tickets.h"

namespace cairnfs::fs {
namespace {

using meta::TicketId;
using meta::TicketRecord;

Failpoint ticket_renamed("fs.ticket_renamed", Failpoint::Kind::kKill);
Failpoint ticket_ended("fs.ticket_ended", Failpoint::Kind::kKill);

constexpr size_t kTicketRunsMax = 32;
constexpr std::chrono::seconds kLookForTicketsEvery{3};
constexpr std::chrono::seconds kTryAgainAfter{5};
constexpr std::chrono::seconds kRestAfterFailure{3};  // of its user
constexpr std::chrono::seconds kRunSpare{60};         // a run has, beside the time that its rename may wait
constexpr std::chrono::seconds kNoteMax{5};

TicketOutcome Later(std::string reason) { return {TicketOutcome::Kind::kLater, std::move(reason)}; }
TicketOutcome Refused(std::string reason) { return {TicketOutcome::Kind::kRefused, std::move(reason)}; }

TicketRecord Ended(TicketRecord record, const TicketOutcome& outcome) {
  const bool is_done = outcome.kind == TicketOutcome::Kind::kRenamed;
  record.state = is_done ? TicketRecord::State::kDone : TicketRecord::State::kFailed;
  record.ended = Clock::WallTime();
  if (!is_done) record.reason = outcome.reason.substr(0, TicketRecord::kReasonBytesMax);
  record.groups.clear();  // of no use any more
  return record;
}

// So that it is never "": of the root itself.
Result<std::string> PathOfParent(const Context& context, meta::Namespace& names, InodeId parent) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string path, PathBelowRoot(context, names, parent));
  return path.empty() ? std::string(".") : path;
}

// What the store says of a directory that is gone; anything else may pass.
bool IsGone(const Error& error) { return error.code == ErrorCode::kNotFound || error.code == ErrorCode::kNotDirectory; }

}  // namespace

Status Tickets::FailWhereBytesMayLack() {
  CAIRNFS_ASSIGN_OR_RETURN(const auto lacking, at_.kv.Get({}, meta::BytesLackKey()));
  if (!lacking) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const All all, ReadAll({}));
  kv::Transaction transaction;
  transaction.Delete(meta::BytesLackKey());
  for (const Known& ticket : all.tickets) {
    if (!ticket.record.is_under_way()) continue;
    // What was renamed had all its bytes.
    CAIRNFS_ASSIGN_OR_RETURN(const bool has_final_name,
                             HasName({}, ticket.record, ticket.record.to_parent, ticket.record.to_name));
    if (has_final_name) continue;
    const std::string why = "the daemon ended after bytes had found no room, or were lost: whether '" +
                            Printable(ticket.record.from_name) + "' has all is not known";
    transaction.Put(meta::TicketKey(ticket.id), Ended(ticket.record, Refused(why)).Encode());
  }
  const auto committed = at_.kv.Commit({}, transaction);
  return committed.ok() ? Status() : Status(committed.error());
}

void Tickets::Start(Result<TicketRunner> runner, std::optional<uint32_t> only_user) {
  {
    MutexLock lock(mutex_);
    if (!runner.ok()) refusal_ = runner.error();
    only_user_ = only_user;
  }
  if (!runner.ok()) return;
  runner_ = *runner;
  thread_ = std::thread([this] { LookAgainAndAgain(); });
}

void Tickets::Stop() {
  stop_.request_stop();
  Wake();
  if (thread_.joinable()) thread_.join();
  for (;;) {
    MutexLock lock(mutex_);
    if (Context().Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return IsIdle(); })) break;
  }
  Reap();
}

bool Tickets::IsIdle() const {
  return std::none_of(work_.begin(), work_.end(), [](const auto& work) { return work.second.is_running(); });
}

void Tickets::Pause(Clock::duration time, Clock::duration patience) {
  std::stop_source runs;
  {
    MutexLock lock(mutex_);
    paused_until_ = std::max(paused_until_, Clock::Now() + time);
    runs = std::exchange(stop_runs_, std::stop_source());
  }
  runs.request_stop();
  MutexLock lock(mutex_);
  static_cast<void>(
      until_stop_.WithTimeout(patience).Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return IsIdle(); }));
}

void Tickets::SetReadOnly(bool read_only) {
  is_read_only_ = read_only;
  if (read_only) Pause({}, kNoteMax);
}

void Tickets::LookAgainAndAgain() {
  pthread_setname_np(pthread_self(), "cairn-tickets");
  while (!until_stop_.IsStopped()) {
    {
      MutexLock lock(mutex_);
      const auto is_woken = [this]() REQUIRES_LOCK(mutex_) { return is_woken_; };
      static_cast<void>(until_stop_.WithTimeout(kLookForTicketsEvery).Wait(mutex_, changed_, is_woken));
      is_woken_ = false;
    }
    Reap();
    Look();
  }
}

// Joins the threads that have ended.
void Tickets::Reap() {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mutex_);
    for (auto& [id, work] : work_) {
      if (work.thread.joinable() && work.has_ended) ended.push_back(std::move(work.thread));
    }
  }
  for (std::thread& thread : ended) thread.join();
}

void Tickets::Look() {
  if (until_stop_.IsStopped()) return;
  if (is_read_only_) return LeaveAll();
  const auto all = ReadAll(until_stop_);
  if (!all.ok()) return;  // it is looked for again
  ForgetExpired(*all);
  std::set<TicketId> under_way;
  for (const Known& ticket : all->tickets) {
    if (ticket.record.is_under_way()) under_way.insert(ticket.id);
  }
  {
    MutexLock lock(mutex_);
    std::erase_if(work_,
                  [&](const auto& work) { return !work.second.thread.joinable() && !under_way.contains(work.first); });
    std::erase_if(rests_, [now = Clock::Now()](const auto& rest) { return rest.second <= now; });
  }
  for (const Known& ticket : all->tickets) {
    if (under_way.contains(ticket.id) && !BeginRun(ticket)) return;
  }
}

void Tickets::ForgetExpired(const All& all) {
  kv::Transaction transaction;
  for (const Known& ticket : all.tickets) {
    if (!IsExpired(ticket.record)) continue;
    transaction.IfRevision(meta::TicketKey(ticket.id), ticket.revision).Delete(meta::TicketKey(ticket.id));
  }
  if (!transaction.writes.empty())
    static_cast<void>(at_.kv.Commit(until_stop_, transaction).ok());  // else the next one
}

bool Tickets::IsRenaming(InodeId directory) const {
  MutexLock lock(mutex_);
  return std::any_of(work_.begin(), work_.end(), [directory](const auto& work) {
    return work.second.directory == directory && work.second.is_running();
  });
}

// To other hosts.
void Tickets::LeaveAll() {
  std::map<TicketId, uint64_t> claims;
  {
    MutexLock lock(mutex_);
    for (auto work = work_.begin(); work != work_.end();) {
      if (work->second.thread.joinable()) {
        ++work;
        continue;
      }
      claims[work->first] = work->second.claim_revision;
      work = work_.erase(work);
    }
  }
  for (const auto& [id, revision] : claims) GiveBack(id, revision);
}

// Whether it may be tried now, as far as this host's tickets go.
bool Tickets::MayRunNow(const Known& ticket) {
  if (only_user_ && *only_user_ != ticket.record.uid) return false;
  const auto now = Clock::Now();
  const auto known = work_.find(ticket.id);
  if (known != work_.end() && (known->second.thread.joinable() || now < known->second.next)) return false;
  if (const auto rest = rests_.find(ticket.record.uid); rest != rests_.end() && now < rest->second) return false;
  size_t own = 0, running = 0;
  for (const auto& [id, work] : work_) {
    if (!work.is_running()) continue;
    ++running;
    if (work.uid == ticket.record.uid) ++own;
  }
  return HasShare(own, running, kTicketRunsMax);
}

// False: none can be begun now.
bool Tickets::BeginRun(const Known& ticket) {
  std::stop_token stop_run;
  {
    MutexLock lock(mutex_);
    if (Clock::Now() < paused_until_) return false;
    if (!MayRunNow(ticket)) return true;
    stop_run = stop_runs_.get_token();
  }
  const auto claim = Claim(ticket);
  if (!claim.ok()) return false;
  if (!*claim) return true;
  MutexLock lock(mutex_);
  auto thread = StartThread("a deferred commit", [this, id = ticket.id, revision = **claim, stop_run] {
    Run(id, revision, until_stop_.WithStop(stop_run));
  });
  if (!thread.ok()) {
    spdlog::warn("a deferred commit waits: {}", thread.error().message);
    return false;
  }
  std::string holds_up = work_.contains(ticket.id) ? work_[ticket.id].holds_up : "";
  work_[ticket.id] = {.uid = ticket.record.uid,
                      .directory = ticket.record.directory,
                      .claim_revision = **claim,
                      .thread = *std::move(thread),
                      .holds_up = std::move(holds_up)};
  return true;
}

// The revision of the claim; 0 on a host alone. nullopt: another host works on it. One of this host for which no run is
// known is left of a run that could not begin, or of the daemon before.
Result<std::optional<uint64_t>> Tickets::Claim(const Known& ticket) {
  if (!self_.join) return std::optional<uint64_t>(0);
  if (ticket.claim_revision != 0 && ticket.claimant != self_.node) return std::optional<uint64_t>();
  kv::Transaction transaction;
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, self_.join(transaction));
  transaction.IfRevision(meta::TicketKey(ticket.id), ticket.revision)
      .IfRevision(meta::TicketClaimKey(ticket.id), ticket.claim_revision);
  transaction.writes.push_back({meta::TicketClaimKey(ticket.id), self_.node, lease});
  const auto claimed = at_.kv.Commit(until_stop_, transaction);
  if (claimed.ok()) return std::optional(*claimed);
  if (claimed.error().code == ErrorCode::kConflict) return std::optional<uint64_t>();
  return claimed.error();
}

// Another host may go on with it at once.
void Tickets::GiveBack(TicketId id, uint64_t claim_revision) {
  if (!self_.join) return;
  kv::Transaction transaction;
  transaction.IfRevision(meta::TicketClaimKey(id), claim_revision).Delete(meta::TicketClaimKey(id));
  static_cast<void>(at_.kv.Commit(Context().WithTimeout(kNoteMax), transaction).ok());  // else its session's end does
}

// On a thread of its own. Tries once.
void Tickets::Run(TicketId id, uint64_t claim_revision, const Context& context) {
  pthread_setname_np(pthread_self(), "cairn-ticket");
  auto outcome = TryToEnd(id, claim_revision, context.WithTimeout(at_.rename_max + kRunSpare));
  if (!outcome.ok()) outcome = Later(outcome.error().message);
  if (context.IsStopped()) GiveBack(id, claim_revision);
  MutexLock lock(mutex_);
  Work& work = work_.at(id);
  work.has_ended = true;
  work.holds_up = outcome->reason;
  if (outcome->kind != TicketOutcome::Kind::kRenamed) {
    work.next = Clock::Now() + kTryAgainAfter;
    rests_[work.uid] = Clock::Now() + kRestAfterFailure;
  }
  ++ends_;
  is_woken_ = true;
  changed_.NotifyAll();
}

// What came of it; of one that another host has ended, or took over as this one's session was lost, kRenamed.
Result<TicketOutcome> Tickets::TryToEnd(TicketId id, uint64_t claim_revision, const Context& context) {
  const TicketOutcome nothing_to_do{TicketOutcome::Kind::kRenamed};
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(context, meta::TicketKey(id)));
  if (!entry) return nothing_to_do;
  Known ticket{.id = id, .record = {}, .revision = entry->revision, .claim_revision = claim_revision};
  CAIRNFS_ASSIGN_OR_RETURN(ticket.record, TicketRecord::Decode(entry->value));
  if (!ticket.record.is_under_way()) return nothing_to_do;
  auto outcome = Rename(ticket.record, context);
  if (!outcome.ok()) outcome = Later(outcome.error().message);
  const auto tried_for = std::chrono::seconds(Clock::WallTime().seconds - ticket.record.taken.seconds);
  if (outcome->kind == TicketOutcome::Kind::kLater && tried_for > kKeptFor && !context.IsStopped()) {
    outcome->kind = TicketOutcome::Kind::kRefused;
    outcome->reason = fmt::format("it could not be made in {} days: {}", kKeptFor.count() / 24, outcome->reason);
  }
  if (outcome->kind == TicketOutcome::Kind::kLater) return outcome;
  ticket_renamed.Pass();
  const Status ended = End(ticket, *outcome);
  if (!ended.ok() && ended.error().code == ErrorCode::kConflict) return nothing_to_do;
  if (!ended.ok()) return ended.error();
  ticket_ended.Pass();
  return outcome;
}

Result<bool> Tickets::HasName(const Context& context, const TicketRecord& record, InodeId parent,
                              const std::string& name) {
  const auto found = at_.names.Lookup(context, parent, name);
  if (!found.ok() && IsGone(found.error())) return false;
  if (!found.ok()) return found.error();
  return found->inode == record.directory;
}

Result<TicketOutcome> Tickets::Rename(const TicketRecord& record, const Context& context) {
  const auto has_final_name = [&] { return HasName(context, record, record.to_parent, record.to_name); };
  // This or another process may have been ended between the rename and this.
  CAIRNFS_ASSIGN_OR_RETURN(const bool was_renamed, has_final_name());
  if (was_renamed) {
    CAIRNFS_RETURN_IF_ERROR(SyncNames(context));
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_durable, has_final_name());  // one that cannot be made so is taken back
    if (is_durable) return TicketOutcome{TicketOutcome::Kind::kRenamed};
  }
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_there, HasName(context, record, record.from_parent, record.from_name));
  if (!is_there) {
    return Refused(fmt::format("the directory '{}' was renamed or removed meanwhile", Printable(record.from_name)));
  }
  const auto before = at_.last_refused(record.directory);
  CAIRNFS_ASSIGN_OR_RETURN(TicketOutcome outcome, RenameByProcess(record, context));
  if (outcome.kind == TicketOutcome::Kind::kRenamed) return outcome;
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, has_final_name());  // its answer was lost
  if (is_renamed) return Later(outcome.reason);
  // rename(2) tells no more than a number.
  const auto refused = at_.last_refused(record.directory);
  const bool is_new = refused && !(before && before->at == refused->at);
  if (is_new) outcome.reason += " (" + refused->JoinCauses() + ")";
  return outcome;
}

Result<TicketOutcome> Tickets::RenameByProcess(const TicketRecord& record, const Context& context) {
  TicketJob job{.who = {record.uid, record.gid, record.groups},
                .directory = record.directory,
                .from = {.parent = record.from_parent, .name = record.from_name},
                .to = {.parent = record.to_parent, .name = record.to_name}};
  for (TicketJob::Place* place : {&job.from, &job.to}) {
    auto path = PathOfParent(context, at_.names, place->parent);
    if (!path.ok() && (IsGone(path.error()) || path.error().code == ErrorCode::kTooLarge)) {
      return Refused("a directory above it was removed, or lies too deep or among too many others by now");
    }
    if (!path.ok()) return path.error();
    place->parent_path = *std::move(path);
  }
  if (context.IsStopped()) return Later("the host ends its deferred commits");
  return runner_(context, job);
}

// Under this host's claim: who lost that leaves it to who has it.
Status Tickets::End(const Known& ticket, const TicketOutcome& outcome) {
  kv::Transaction transaction;
  transaction.IfRevision(meta::TicketKey(ticket.id), ticket.revision)
      .Put(meta::TicketKey(ticket.id), Ended(ticket.record, outcome).Encode());
  if (self_.join) {
    CAIRNFS_RETURN_IF_ERROR(self_.join(transaction));
    transaction.IfRevision(meta::TicketClaimKey(ticket.id), ticket.claim_revision)
        .Delete(meta::TicketClaimKey(ticket.id));
  }
  // Also of a host that stops: the rename is made, or refused, already.
  const auto committed = at_.kv.Commit(Context().WithTimeout(kNoteMax), transaction);
  return committed.ok() ? Status() : Status(committed.error());
}

}  // namespace cairnfs::fs
