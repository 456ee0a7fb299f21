// How tickets are taken, and how their results are given.
#include "fs/tickets.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/coding.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/printable.h"
#include "base/random_bytes.h"
#include "base/user.h"
#include "fs/permissions.h"
#include "fs/scan.h"
#include "meta/access.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

using meta::TicketId;
using meta::TicketRecord;

Failpoint ticket_taken("fs.ticket_taken", Failpoint::Kind::kKill);

constexpr size_t kWaitingMax = 64;             // calls of Take, of all users
constexpr size_t kNamesSearchedMax = 200'000;  // of the directory that it lies in
constexpr size_t kLevelsAboveMax = 256;
constexpr size_t kForgottenAtOnce = 32;                     // results, by one that takes a ticket
constexpr std::chrono::milliseconds kLookForEndEvery{500};  // it may end on another host

bool IsUnderWay(const TicketRecord& record) { return record.state == TicketRecord::State::kUnderWay; }

bool IsExpired(const TicketRecord& record) {
  const Timestamp now = Clock::WallTime();
  return !IsUnderWay(record) && record.ended.seconds + std::chrono::seconds(Tickets::kKeptFor).count() < now.seconds;
}

Error NoTicket(TicketId id) {
  return MakeError(ErrorCode::kNotFound,
                   fmt::format("there is no ticket {}: its result was given already, or {} days ago, or its host went "
                               "down before the ticket was durable; whether the final name is there tells",
                               meta::TicketText(id), Tickets::kKeptFor.count() / 24));
}

}  // namespace

Tickets::Tickets(Parts parts, Lease lease)
    : at_(std::move(parts)), lease_(std::move(lease)), self_(RandomBytes(8)), until_stop_(stop_.get_token()) {}

Result<Tickets::All> Tickets::ReadAll(const Context& context) {
  All all;
  const std::string prefix = meta::TicketsPrefix();
  const auto visit = [&](const kv::KvEntry& entry) {
    if (entry.key == prefix) all.taken_revision = entry.revision;
    if (const auto id = meta::TicketOfKey(entry.key)) {
      auto record = TicketRecord::Decode(entry.value);
      if (record.ok()) all.tickets.push_back({*id, *std::move(record), entry.revision});
    } else if (const auto claimed = meta::TicketOfClaimKey(entry.key); claimed && !all.tickets.empty()) {
      Known& ticket = all.tickets.back();
      if (ticket.id != *claimed) return true;
      ticket.claimed_by = entry.value;
      ticket.claim_revision = entry.revision;
    }
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, at_.kv, prefix, visit));
  std::stable_sort(all.tickets.begin(), all.tickets.end(),
                   [](const Known& left, const Known& right) { return left.record.taken < right.record.taken; });
  return all;
}

// What the new name would run into, as far as it can be known now.
Status Tickets::CheckNames(const Request& request, const TicketRecord& record, const Context& context) {
  CAIRNFS_RETURN_IF_ERROR(meta::ValidateName(request.to_name));
  if (record.to_name.starts_with(retention::kGoingPrefix) || record.from_name.starts_with(retention::kGoingPrefix)) {
    return InvalidArgument(
        fmt::format("names that begin with {} are those of what retention removes", retention::kGoingPrefix));
  }
  InodeId above = record.to_parent;
  for (size_t level = 0; above != kRootInode; ++level) {
    if (above == record.directory) return InvalidArgument("the final name lies in the directory that is to get it");
    if (level == kLevelsAboveMax) return MakeError(ErrorCode::kTooLarge, "the final name lies too deep below the root");
    CAIRNFS_ASSIGN_OR_RETURN(above, at_.names.ParentOf(context, above));
  }
  const auto there = at_.names.Lookup(context, record.to_parent, record.to_name);
  if (!there.ok() && there.error().code == ErrorCode::kNotFound) return {};
  if (!there.ok()) return there.error();
  if (there->inode == record.directory) {
    return MakeError(ErrorCode::kAlreadyExists, "the directory has its final name already");
  }
  const Error taken = MakeError(
      S_ISDIR(there->mode) ? ErrorCode::kNotEmpty : ErrorCode::kAlreadyExists,
      fmt::format("there is another '{}' already: remove it first, or give another name", Printable(record.to_name)));
  if (!S_ISDIR(there->mode)) return taken;
  CAIRNFS_ASSIGN_OR_RETURN(const auto entries, at_.names.ReadDirectory(context, there->inode, "", 1));
  return entries.empty() ? Status() : Status(taken);
}

Result<TicketRecord> Tickets::Prepare(const Request& request, const Context& context) {
  if (is_read_only_) return MakeError(ErrorCode::kPermission, "the filesystem is mounted read-only here");
  if (request.under_way_max == 0 || request.under_way_max > kOfDirectoryMax) {
    return InvalidArgument(fmt::format("1 to {} tickets may be under way for a directory, not {}", kOfDirectoryMax,
                                       request.under_way_max));
  }
  if (request.who.groups.size() > TicketRecord::kGroupsMax) {
    return InvalidArgument(
        fmt::format("a process with more than {} groups cannot defer a commit", TicketRecord::kGroupsMax));
  }
  if (request.directory == kRootInode) return InvalidArgument("the root of the filesystem cannot be renamed");
  TicketRecord record;
  record.taken = Clock::WallTime();
  record.uid = request.who.uid;
  record.gid = request.who.gid;
  record.groups = request.who.groups;
  record.directory = request.directory;
  record.to_name = request.to_name;
  CAIRNFS_ASSIGN_OR_RETURN(record.from_parent, at_.names.ParentOf(context, request.directory));
  record.to_parent = request.to_parent.value_or(record.from_parent);
  CAIRNFS_RETURN_IF_ERROR(CheckMayRename(context, at_.names, request.who, record.directory, record.to_parent));
  CAIRNFS_ASSIGN_OR_RETURN(record.from_name,
                           at_.names.NameIn(context, record.from_parent, request.directory, kNamesSearchedMax));
  CAIRNFS_RETURN_IF_ERROR(CheckNames(request, record, context));
  return record;
}

// False: it has to wait. Tickets of others hold up nobody's.
Result<bool> Tickets::CheckShares(const Request& request, const TicketRecord& record, const All& all) const {
  size_t under_way = 0, own_under_way = 0, of_directory = 0;
  for (const Known& other : all.tickets) {
    if (!IsUnderWay(other.record)) continue;
    const bool is_own = other.record.uid == record.uid;
    ++under_way;
    if (is_own) ++own_under_way;
    if (is_own && other.record.to_parent == record.to_parent) ++of_directory;
    if (other.record.directory != record.directory) continue;
    const std::string which = is_own ? "ticket " + meta::TicketText(other.id) : "that of another user";
    return MakeError(ErrorCode::kBusy, fmt::format("a deferred commit of '{}' is under way already: {}",
                                                   Printable(record.from_name), which));
  }
  if (of_directory >= request.under_way_max) return false;
  if (HasShare(own_under_way, under_way, kUnderWayMax) && all.tickets.size() < kTicketsMax) return true;
  return MakeError(ErrorCode::kBusy, fmt::format("{} deferred commits are under way, {} of them of {}: try again when "
                                                 "some have ended",
                                                 under_way, own_under_way, UserName(record.uid)));
}

Result<std::optional<TicketId>> Tickets::TryTake(const Request& request, const Context& context) {
  {
    MutexLock lock(mutex_);
    if (!refusal_.empty()) return MakeError(ErrorCode::kUnavailable, refusal_);
    if (only_user_ && *only_user_ != request.who.uid) {
      return MakeError(ErrorCode::kPermission,
                       fmt::format("this mount is for {} alone: no commit of {} can be deferred", UserName(*only_user_),
                                   UserName(request.who.uid)));
    }
  }
  CAIRNFS_ASSIGN_OR_RETURN(const TicketRecord record, Prepare(request, context));
  CAIRNFS_ASSIGN_OR_RETURN(const All all, ReadAll(context));
  CAIRNFS_ASSIGN_OR_RETURN(const bool may, CheckShares(request, record, all));
  if (!may) return std::optional<TicketId>();
  const TicketId id = Decoder(RandomBytes(sizeof(TicketId))).U64() | 1;
  kv::Transaction transaction;
  transaction.IfRevision(meta::TicketsPrefix(), all.taken_revision)
      .Put(meta::TicketsPrefix(), {})
      .Put(meta::TicketKey(id), record.Encode());
  transaction.makes_names_for = record.uid;
  size_t own_results = 0, forgotten = 0;
  for (auto other = all.tickets.rbegin(); other != all.tickets.rend() && forgotten < kForgottenAtOnce; ++other) {
    if (IsUnderWay(other->record)) continue;
    if (other->record.uid == record.uid) ++own_results;
    const bool is_too_many = other->record.uid == record.uid && own_results >= kResultsMax;
    if (!is_too_many && !IsExpired(other->record)) continue;
    transaction.Delete(meta::TicketKey(other->id));
    ++forgotten;
  }
  const auto committed = at_.kv.Commit(context, transaction);
  if (!committed.ok() && committed.error().code == ErrorCode::kConflict) return std::optional<TicketId>();
  if (!committed.ok()) return committed.error();
  ticket_taken.Pass();
  Wake();
  return std::optional(id);
}

void Tickets::Take(const Request& request, const Context& context, Done<TicketId> done) {
  auto taken = TryTake(request, context);
  if (!taken.ok()) return done(taken.error());
  if (*taken) return done(**taken);
  bool waits = false;
  {
    MutexLock lock(mutex_);
    const auto own = static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiting& other) {
      return other.request.who.uid == request.who.uid;
    }));
    waits = !until_stop_.IsStopped() && HasShare(own, waiting_.size(), kWaitingMax);
    if (waits) waiting_.push_back({request, context, done});
    is_woken_ = true;
    changed_.NotifyAll();
  }
  if (!waits) done(MakeError(ErrorCode::kBusy, "too many calls wait for a deferred commit to end: try again later"));
}

// On the thread that looks for work.
void Tickets::AnswerWaiting() {
  std::list<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (auto next = waiting.begin(); next != waiting.end();) {
    if (next->context.Expired() || until_stop_.IsStopped()) {
      next->done(MakeError(ErrorCode::kInterrupted, "the call was ended while another deferred commit was under way"));
      next = waiting.erase(next);
      continue;
    }
    auto taken = TryTake(next->request, next->context);
    if (taken.ok() && !*taken) {
      ++next;
      continue;
    }
    next->done(taken.ok() ? Result<TicketId>(**taken) : Result<TicketId>(taken.error()));
    next = waiting.erase(next);
  }
  MutexLock lock(mutex_);
  waiting_.splice(waiting_.begin(), waiting);  // who came first is first
}

void Tickets::Wake() {
  MutexLock lock(mutex_);
  is_woken_ = true;
  changed_.NotifyAll();
}

Result<TicketRecord> Tickets::Await(const Context& context, TicketId id, uint32_t uid) {
  for (;;) {
    uint64_t ends_before = 0;
    {
      MutexLock lock(mutex_);
      ends_before = ends_;
    }
    CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(context.WithoutDeadline(), meta::TicketKey(id)));
    if (!entry) return NoTicket(id);
    CAIRNFS_ASSIGN_OR_RETURN(TicketRecord record, TicketRecord::Decode(entry->value));
    if (uid != 0 && uid != record.uid) {
      return MakeError(ErrorCode::kPermission, fmt::format("ticket {} is another user's: its result is for {} and root",
                                                           meta::TicketText(id), UserName(record.uid)));
    }
    if (context.IsStopped()) return MakeError(ErrorCode::kInterrupted, "the wait was ended; the commit goes on");
    if (!IsUnderWay(record)) {
      const Status forgotten = Forget(*entry, context.WithoutDeadline());
      if (forgotten.ok()) return record;
      if (forgotten.error().code != ErrorCode::kConflict) return forgotten.error();
      continue;  // another call was first
    }
    if (context.Expired()) return record;
    MutexLock lock(mutex_);
    const auto has_one_ended = [&]() REQUIRES_LOCK(mutex_) { return ends_ != ends_before; };
    static_cast<void>(context.WithTimeout(kLookForEndEvery).Wait(mutex_, changed_, has_one_ended));
  }
}

// Whose answer is lost is sent again, until it is known whether it ran: a result is not to go unseen.
Status Tickets::Forget(const kv::KvEntry& entry, const Context& context) {
  kv::Transaction transaction;
  transaction.IfRevision(entry.key, entry.revision).Delete(entry.key);
  transaction.operation_id = "ticket/" + ToHex(RandomBytes(8));
  for (;;) {
    const auto forgotten = at_.kv.Commit(context, transaction);
    if (forgotten.ok()) return {};
    if (!kv::MayHaveRun(forgotten.error().code) || !context.Sleep(kLookForEndEvery)) return forgotten.error();
  }
}

std::string Tickets::PathOf(const Context& context, const TicketRecord& record) {
  return at_.names.PathOf(context, record.to_parent, record.to_name);
}

std::string Tickets::WhatHoldsUp(TicketId id) {
  MutexLock lock(mutex_);
  const auto run = runs_.find(id);
  return run == runs_.end() ? std::string() : run->second.holds_up;
}

}  // namespace cairnfs::fs
