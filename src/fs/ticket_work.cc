// How tickets are worked on: one thread looks for those that nobody works on, and each has a thread of its own, which
// mostly waits for a rename.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/answer.h"
#include "base/failpoint.h"
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
constexpr std::chrono::milliseconds kLookForTicketsEvery{3000}, kLookWhileCallsWait{250};
constexpr std::chrono::seconds kTryAgainMin{1}, kTryAgainMax{30}, kGiveBackMax{5};

TicketOutcome Later(std::string reason) { return {TicketOutcome::Kind::kLater, std::move(reason)}; }
TicketOutcome Refused(std::string reason) { return {TicketOutcome::Kind::kRefused, std::move(reason)}; }

// So that it is never "": of the root itself.
Result<std::string> PathOfParent(const Context& context, meta::Namespace& names, InodeId parent) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string path, PathBelowRoot(context, names, parent));
  return path.empty() ? std::string(".") : path;
}

// What the store says of a directory that is gone; anything else may pass.
bool IsGone(const Error& error) { return error.code == ErrorCode::kNotFound || error.code == ErrorCode::kNotDirectory; }

}  // namespace

void Tickets::Start(TicketRunner runner, std::optional<uint32_t> only_user) {
  runner_ = std::move(runner);
  {
    MutexLock lock(mutex_);
    only_user_ = only_user;
  }
  thread_ = std::thread([this] { Work(); });
}

void Tickets::Refuse(std::string why) {
  MutexLock lock(mutex_);
  refusal_ = std::move(why);
}

void Tickets::Stop() {
  stop_.request_stop();
  Wake();
  if (thread_.joinable()) thread_.join();
  AnswerWaiting();
  for (;;) {
    MutexLock lock(mutex_);
    const auto all_have_ended = [this]() REQUIRES_LOCK(mutex_) {
      return std::all_of(runs_.begin(), runs_.end(), [](const auto& run) { return run.second.has_ended; });
    };
    if (Context().Wait(mutex_, changed_, all_have_ended)) break;
  }
  Reap();
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
  const auto is_idle = [this]() REQUIRES_LOCK(mutex_) {
    return std::all_of(runs_.begin(), runs_.end(), [](const auto& run) { return run.second.has_ended; });
  };
  static_cast<void>(until_stop_.WithTimeout(patience).Wait(mutex_, changed_, is_idle));
}

void Tickets::Work() {
  pthread_setname_np(pthread_self(), "cairn-tickets");
  while (!until_stop_.IsStopped()) {
    {
      MutexLock lock(mutex_);
      const auto is_woken = [this]() REQUIRES_LOCK(mutex_) { return is_woken_; };
      const auto pause = waiting_.empty() ? kLookForTicketsEvery : kLookWhileCallsWait;
      static_cast<void>(until_stop_.WithTimeout(pause).Wait(mutex_, changed_, is_woken));
      is_woken_ = false;
    }
    Reap();
    AnswerWaiting();
    Look();
  }
}

// Joins the threads that have ended.
void Tickets::Reap() {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mutex_);
    for (auto run = runs_.begin(); run != runs_.end();) {
      if (!run->second.has_ended) {
        ++run;
        continue;
      }
      ended.push_back(std::move(run->second.thread));
      run = runs_.erase(run);
    }
  }
  for (std::thread& thread : ended) thread.join();
}

void Tickets::Look() {
  if (is_read_only_ || until_stop_.IsStopped()) return;
  const auto all = ReadAll(until_stop_);
  if (!all.ok()) return;  // it is looked for again
  for (const Known& ticket : all->tickets) {
    const bool is_others = !ticket.claimed_by.empty() && ticket.claimed_by != self_;
    if (ticket.record.state != TicketRecord::State::kUnderWay || is_others) continue;
    if (!BeginRun(ticket)) return;
  }
}

// False: none can be begun now.
bool Tickets::BeginRun(const Known& ticket) {
  std::stop_token stop_run;
  {
    MutexLock lock(mutex_);
    if (Clock::Now() < paused_until_) return false;
    if (runs_.contains(ticket.id) || (only_user_ && *only_user_ != ticket.record.uid)) return true;
    const auto own = static_cast<size_t>(std::count_if(
        runs_.begin(), runs_.end(), [&](const auto& run) { return run.second.uid == ticket.record.uid; }));
    if (!HasShare(own, runs_.size(), kTicketRunsMax)) return true;  // others may have more left of theirs
    stop_run = stop_runs_.get_token();
  }
  const auto is_ours = Claim(ticket);
  if (!is_ours.ok()) return false;
  if (!*is_ours) return true;
  const Status begun = StartRun(ticket, stop_run);
  if (begun.ok()) return true;
  spdlog::warn("a deferred commit waits: {}", begun.error().message);
  GiveBack(ticket.id);
  return false;
}

Status Tickets::StartRun(const Known& ticket, const std::stop_token& stop_run) {
  MutexLock lock(mutex_);
  CAIRNFS_ASSIGN_OR_RETURN(std::thread thread, StartThread("a deferred commit", [this, id = ticket.id, stop_run] {
                             WorkOn(id, until_stop_.WithStop(stop_run));
                           }));
  runs_[ticket.id] = {.uid = ticket.record.uid, .thread = std::move(thread)};
  return {};
}

// False: another host works on it. A claim whose answer was lost is this host's all the same, and put once more.
Result<bool> Tickets::Claim(const Known& ticket) {
  if (!lease_) return true;
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, lease_(until_stop_));
  kv::Transaction transaction;
  transaction.IfRevision(meta::TicketKey(ticket.id), ticket.revision)
      .IfRevision(meta::TicketClaimKey(ticket.id), ticket.claim_revision);
  transaction.writes.push_back({meta::TicketClaimKey(ticket.id), self_, lease});
  const auto claimed = at_.kv.Commit(until_stop_, transaction);
  if (!claimed.ok() && claimed.error().code == ErrorCode::kConflict) return false;
  return claimed.ok() ? Result<bool>(true) : Result<bool>(claimed.error());
}

// On a thread of its own.
void Tickets::WorkOn(TicketId id, const Context& context) {
  pthread_setname_np(pthread_self(), "cairn-ticket");
  auto pause = std::chrono::duration_cast<Clock::duration>(kTryAgainMin);
  for (;;) {
    const auto has_ended = TryToEnd(id, context);
    if (has_ended.ok() && *has_ended) break;
    if (is_read_only_ || !context.Sleep(pause)) {
      GiveBack(id);
      break;
    }
    pause = std::min<Clock::duration>(2 * pause, kTryAgainMax);
  }
  MutexLock lock(mutex_);
  if (const auto run = runs_.find(id); run != runs_.end()) run->second.has_ended = true;
  ++ends_;
  is_woken_ = true;
  changed_.NotifyAll();
}

// Another host may go on with it at once; else once this one's session has ended.
void Tickets::GiveBack(TicketId id) {
  if (!lease_) return;
  const Context soon = Context().WithTimeout(kGiveBackMax);
  const auto claim = at_.kv.Get(soon, meta::TicketClaimKey(id));
  if (!claim.ok() || !*claim || (*claim)->value != self_) return;
  kv::Transaction transaction;
  transaction.IfRevision((*claim)->key, (*claim)->revision).Delete((*claim)->key);
  static_cast<void>(at_.kv.Commit(soon, transaction).ok());
}

// False: it is to be tried again.
Result<bool> Tickets::TryToEnd(TicketId id, const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(context, meta::TicketKey(id)));
  if (!entry) return true;
  Known ticket{.id = id, .record = {}, .revision = entry->revision};
  CAIRNFS_ASSIGN_OR_RETURN(ticket.record, TicketRecord::Decode(entry->value));
  if (ticket.record.state != TicketRecord::State::kUnderWay) return true;
  auto outcome = Rename(ticket.record, context);
  if (!outcome.ok()) outcome = Later(outcome.error().message);
  if (context.Expired() && outcome->kind == TicketOutcome::Kind::kLater) return false;
  const auto tried_for = std::chrono::seconds(Clock::WallTime().seconds - ticket.record.taken.seconds);
  if (outcome->kind == TicketOutcome::Kind::kLater && tried_for > kKeptFor) {
    outcome->kind = TicketOutcome::Kind::kRefused;
    outcome->reason = fmt::format("it could not be made in {} days: {}", kKeptFor.count() / 24, outcome->reason);
  }
  {
    MutexLock lock(mutex_);
    if (const auto run = runs_.find(id); run != runs_.end()) run->second.holds_up = outcome->reason;
  }
  if (outcome->kind == TicketOutcome::Kind::kLater) return false;
  ticket_renamed.Pass();
  const Status ended = End(ticket, *outcome, context);
  // kConflict: another host has ended it, as this one's session was lost.
  if (!ended.ok() && ended.error().code != ErrorCode::kConflict) return ended.error();
  ticket_ended.Pass();
  return true;
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
    const auto synced = std::make_shared<Answer<Status>>();
    at_.sync_names([synced](const Status& status) { synced->Set(status); });
    if (!synced->Wait(context)) return Later("the name is not durable yet");
    CAIRNFS_RETURN_IF_ERROR(synced->Take());
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_durable, has_final_name());  // one that cannot be made so is taken back
    if (is_durable) return TicketOutcome{TicketOutcome::Kind::kRenamed};
  }
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_there, HasName(context, record, record.from_parent, record.from_name));
  if (!is_there) {
    return Refused(fmt::format("the directory '{}' was renamed or removed meanwhile", Printable(record.from_name)));
  }
  TicketJob job{.who = {record.uid, record.gid, record.groups},
                .directory = record.directory,
                .from_parent = {},
                .from_name = record.from_name,
                .to_parent = {},
                .to_name = record.to_name};
  CAIRNFS_ASSIGN_OR_RETURN(job.from_parent, PathOfParent(context, at_.names, record.from_parent));
  auto to_parent = PathOfParent(context, at_.names, record.to_parent);
  if (!to_parent.ok() && IsGone(to_parent.error())) {
    return Refused("the directory that the final name lies in was removed meanwhile");
  }
  if (!to_parent.ok()) return to_parent.error();
  job.to_parent = *std::move(to_parent);
  const auto before = at_.last_refused(record.directory);
  TicketOutcome outcome = runner_(context, job);
  if (outcome.kind != TicketOutcome::Kind::kRefused) return outcome;
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, has_final_name());  // its answer was lost
  if (is_renamed) return Later(outcome.reason);
  // rename(2) tells no more than a number.
  const auto refused = at_.last_refused(record.directory);
  const bool is_new = refused && !(before && before->at == refused->at);
  if (is_new) outcome.reason += " (" + refused->JoinCauses() + ")";
  return outcome;
}

Status Tickets::End(const Known& ticket, const TicketOutcome& outcome, const Context& context) {
  const bool is_done = outcome.kind == TicketOutcome::Kind::kRenamed;
  TicketRecord record = ticket.record;
  record.state = is_done ? TicketRecord::State::kDone : TicketRecord::State::kFailed;
  record.ended = Clock::WallTime();
  if (!is_done) record.reason = outcome.reason.substr(0, TicketRecord::kReasonBytesMax);
  record.groups.clear();  // of no use any more
  kv::Transaction transaction;
  transaction.IfRevision(meta::TicketKey(ticket.id), ticket.revision)
      .Put(meta::TicketKey(ticket.id), record.Encode())
      .Delete(meta::TicketClaimKey(ticket.id));
  // It was made, whoever stops this meanwhile.
  const auto committed = at_.kv.Commit(context.WithoutDeadline(), transaction);
  if (!committed.ok()) return committed.error();
  if (!is_done) {
    spdlog::info("the deferred commit {} to '{}' failed: {}", meta::TicketText(ticket.id), Printable(record.to_name),
                 Printable(record.reason));
  }
  return {};
}

}  // namespace cairnfs::fs
