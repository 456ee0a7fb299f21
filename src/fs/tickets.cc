// How tickets are taken, and how their results are given.
#include "fs/tickets.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <climits>
#include <deque>
#include <map>
#include <utility>

#include "base/answer.h"
#include "base/coding.h"
#include "base/failpoint.h"
#include "base/fair_share.h"
#include "base/hex.h"
#include "base/printable.h"
#include "base/random_bytes.h"
#include "base/user.h"
#include "fs/paths.h"
#include "fs/permissions.h"
#include "fs/scan.h"
#include "meta/access.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

using meta::TicketId;
using meta::TicketRecord;

Failpoint ticket_taken("fs.ticket_taken", Failpoint::Kind::kKill);

constexpr size_t kNamesSearchedMax = 200'000;  // of the directory that it lies in
constexpr size_t kLevelsAboveMax = 256;
constexpr unsigned kTakeTriesMax = 16;                      // while others take tickets at the same time
constexpr std::chrono::milliseconds kLookForEndEvery{500};  // it may end on another host

Error NoTicket(TicketId id) {
  return MakeError(ErrorCode::kNotFound,
                   fmt::format("there is no ticket {}: its result was given already, or {} days ago, or its host went "
                               "down before the ticket was durable; whether the final name is there tells",
                               meta::TicketText(id), Tickets::kKeptFor.count() / 24));
}

// Has the transaction forget what is too old, and what is too much with one more ticket of this user.
void ForgetResults(std::map<uint32_t, std::deque<TicketId>> of_users, uint32_t uid, kv::Transaction& transaction) {
  size_t count = 0;
  for (const auto& [user, results] : of_users) count += results.size();
  const auto forget_oldest = [&](std::deque<TicketId>& results) {
    transaction.Delete(meta::TicketKey(results.front()));
    results.pop_front();
    --count;
  };
  std::deque<TicketId>& own = of_users[uid];
  while (own.size() >= Tickets::kResultsMax) forget_oldest(own);
  const auto has_fewer = [](const auto& left, const auto& right) { return left.second.size() < right.second.size(); };
  while (count >= Tickets::kResultsOfAllMax) {
    forget_oldest(std::max_element(of_users.begin(), of_users.end(), has_fewer)->second);
  }
}

}  // namespace

Tickets::Tickets(Parts parts, Self self)
    : at_(std::move(parts)), self_(std::move(self)), until_stop_(stop_.get_token()) {}

bool Tickets::IsExpired(const TicketRecord& record) {
  const auto kept = std::chrono::seconds(kKeptFor).count();
  return !record.is_under_way() && record.ended.seconds + kept < Clock::WallTime().seconds;
}

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
      ticket.claimant = entry.value;
      ticket.claim_revision = entry.revision;
    }
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, at_.kv, prefix, visit));
  std::stable_sort(all.tickets.begin(), all.tickets.end(),
                   [](const Known& left, const Known& right) { return left.record.taken < right.record.taken; });
  return all;
}

Status Tickets::CheckMayGo(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const All all, ReadAll(context));
  const bool is_under_way = std::any_of(all.tickets.begin(), all.tickets.end(), [&](const Known& ticket) {
    return ticket.record.is_under_way() && ticket.record.directory == directory;
  });
  return is_under_way ? Status(MakeError(ErrorCode::kBusy, "a deferred commit of it is under way")) : Status();
}

// What the new name would run into, as far as it can be known now.
Status Tickets::CheckNames(const TicketRecord& record, const Context& context) {
  CAIRNFS_RETURN_IF_ERROR(meta::ValidateName(record.to_name));
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
  // Who renames goes there from the root.
  for (const InodeId parent : {record.from_parent, record.to_parent}) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string path, PathBelowRoot(context, at_.names, parent));
    if (path.size() >= PATH_MAX) {
      return MakeError(ErrorCode::kTooLarge, fmt::format("the path of a directory above has {} bytes, and may have {}",
                                                         path.size(), PATH_MAX - 1));
    }
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

Status Tickets::CheckMayTake(const Request& request) {
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
  MutexLock lock(mutex_);
  if (refusal_) return *refusal_;
  if (!only_user_ || *only_user_ == request.who.uid) return {};
  return MakeError(ErrorCode::kPermission, fmt::format("this mount is for {} alone: no commit of {} can be deferred",
                                                       UserName(*only_user_), UserName(request.who.uid)));
}

Result<TicketRecord> Tickets::Prepare(const Request& request, const Context& context) {
  TicketRecord record;
  record.uid = request.who.uid;
  record.gid = request.who.gid;
  record.groups = request.who.groups;
  record.directory = request.directory;
  record.to_name = request.to_name;
  CAIRNFS_ASSIGN_OR_RETURN(record.from_parent, at_.names.ParentOf(context, request.directory));
  record.to_parent = request.to_parent.value_or(record.from_parent);
  CAIRNFS_RETURN_IF_ERROR(CheckMayRename(context, at_.names, request.who, record.directory, record.to_parent));
  for (const InodeId parent : {record.from_parent, record.to_parent}) {
    CAIRNFS_RETURN_IF_ERROR(CheckMayEnter(context, at_.names, request.who, parent));
  }
  for (const InodeId changed : {record.directory, record.from_parent, record.to_parent}) {
    CAIRNFS_RETURN_IF_ERROR(at_.names.CheckUnsealed(context, changed));
  }
  CAIRNFS_ASSIGN_OR_RETURN(record.from_name,
                           at_.names.NameIn(context, record.from_parent, request.directory, kNamesSearchedMax));
  CAIRNFS_RETURN_IF_ERROR(CheckNames(record, context));
  return record;
}

// False: it has to wait. Tickets of others hold up nobody's.
Result<bool> Tickets::CheckShares(unsigned under_way_max, const TicketRecord& record, const All& all) const {
  size_t under_way = 0, own_under_way = 0, of_directory = 0;
  for (const Known& other : all.tickets) {
    if (!other.record.is_under_way()) continue;
    const bool is_own = other.record.uid == record.uid;
    ++under_way;
    if (is_own) ++own_under_way;
    if (is_own && other.record.to_parent == record.to_parent) ++of_directory;
    if (other.record.directory != record.directory) continue;
    const std::string which = is_own ? "ticket " + meta::TicketText(other.id) : "that of another user";
    return MakeError(ErrorCode::kBusy, fmt::format("a deferred commit of '{}' is under way already: {}",
                                                   Printable(record.from_name), which));
  }
  if (of_directory >= under_way_max) return false;
  if (HasShare(own_under_way, under_way, kUnderWayMax)) return true;
  return MakeError(ErrorCode::kBusy, fmt::format("{} deferred commits are under way, {} of them of {}: try again when "
                                                 "some have ended",
                                                 under_way, own_under_way, UserName(record.uid)));
}

Result<std::optional<TicketId>> Tickets::TryTake(unsigned under_way_max, TicketRecord record, const Context& context) {
  for (unsigned tries = 1;; ++tries) {
    CAIRNFS_ASSIGN_OR_RETURN(const All all, ReadAll(context));
    CAIRNFS_ASSIGN_OR_RETURN(const bool may, CheckShares(under_way_max, record, all));
    if (!may) return std::optional<TicketId>();
    const TicketId id = Decoder(RandomBytes(sizeof(TicketId))).U64() | 1;
    record.taken = Clock::WallTime();
    kv::Transaction transaction;
    if (self_.join) CAIRNFS_RETURN_IF_ERROR(self_.join(transaction));
    transaction.IfRevision(meta::TicketsPrefix(), all.taken_revision)
        .Put(meta::TicketsPrefix(), {})
        .Put(meta::TicketKey(id), record.Encode());
    transaction.makes_names_for = record.uid;
    std::map<uint32_t, std::deque<TicketId>> results;
    for (const Known& other : all.tickets) {
      if (!other.record.is_under_way()) results[other.record.uid].push_back(other.id);
    }
    ForgetResults(std::move(results), record.uid, transaction);
    const auto committed = at_.kv.Commit(context, transaction);
    if (committed.ok()) return std::optional(id);
    if (committed.error().code != ErrorCode::kConflict || tries == kTakeTriesMax) return committed.error();
  }
}

Result<TicketId> Tickets::Take(const Request& request, const Context& context) {
  const Context until_stop = context.WithStop(stop_.get_token());
  const Context calls = until_stop.WithoutDeadline();
  CAIRNFS_RETURN_IF_ERROR(CheckMayTake(request));
  CAIRNFS_ASSIGN_OR_RETURN(const TicketRecord record, Prepare(request, calls));
  for (;;) {
    CAIRNFS_RETURN_IF_ERROR(CheckMayTake(request));  // the mount may have become read-only
    const uint64_t ends_before = ends();
    CAIRNFS_ASSIGN_OR_RETURN(const auto taken, TryTake(request.under_way_max, record, calls));
    if (taken) {
      ticket_taken.Pass();
      Wake();
      return *taken;
    }
    if (calls.IsStopped()) {
      return MakeError(ErrorCode::kInterrupted, "the call was ended while another deferred commit was under way");
    }
    if (until_stop.Expired()) {
      return MakeError(ErrorCode::kBusy, fmt::format("{} deferred commits into that directory are under way: try again "
                                                     "when one has ended",
                                                     request.under_way_max));
    }
    AwaitAnEnd(until_stop, ends_before);
  }
}

uint64_t Tickets::ends() {
  MutexLock lock(mutex_);
  return ends_;
}

// Of a run of this host; on another one it may be seen later.
void Tickets::AwaitAnEnd(const Context& context, uint64_t ends_before) {
  MutexLock lock(mutex_);
  const auto has_one_ended = [&]() REQUIRES_LOCK(mutex_) { return ends_ != ends_before; };
  static_cast<void>(context.WithTimeout(kLookForEndEvery).Wait(mutex_, changed_, has_one_ended));
}

void Tickets::Wake() {
  MutexLock lock(mutex_);
  is_woken_ = true;
  changed_.NotifyAll();
}

Status Tickets::SyncNames(const Context& context) {
  const auto synced = AwaitStatus(context, at_.sync_names);
  return synced ? *synced : Status(MakeError(ErrorCode::kInterrupted, "the wait was ended"));
}

// For good on return. Else it is there still, or again: whoever asked is not told.
Status Tickets::Forget(const kv::KvEntry& entry, const Context& context) {
  kv::Transaction transaction;
  transaction.IfRevision(entry.key, entry.revision).Delete(entry.key);
  transaction.operation_id = "ticket/" + ToHex(RandomBytes(8));
  for (;;) {  // whose answer is lost is sent again, until it is known whether it ran
    const auto forgotten = at_.kv.Commit(context, transaction);
    if (forgotten.ok()) break;
    if (!kv::MayHaveRun(forgotten.error().code) || !context.Sleep(kLookForEndEvery)) return forgotten.error();
  }
  Status synced = SyncNames(context);
  if (synced.ok()) return {};
  static_cast<void>(at_.kv.Commit({}, kv::Transaction().IfAbsent(entry.key).Put(entry.key, entry.value)).ok());
  return synced.error().WithContext("the result is not durable yet");
}

Result<TicketRecord> Tickets::Await(const Context& context, TicketId id, uint32_t uid) {
  const Context calls = context.WithoutDeadline().WithStop(stop_.get_token());
  for (;;) {
    const uint64_t ends_before = ends();
    CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(calls, meta::TicketKey(id)));
    if (!entry) return NoTicket(id);
    CAIRNFS_ASSIGN_OR_RETURN(TicketRecord record, TicketRecord::Decode(entry->value));
    if (uid != 0 && uid != record.uid) {
      return MakeError(ErrorCode::kPermission,
                       fmt::format("ticket {} is another user's: its result is for {}{}", meta::TicketText(id),
                                   UserName(record.uid), record.uid == 0 ? "" : " and root"));
    }
    if (IsExpired(record)) return NoTicket(id);
    if (calls.IsStopped()) return MakeError(ErrorCode::kInterrupted, "the wait was ended; the commit goes on");
    if (!record.is_under_way()) {
      const Status forgotten = Forget(*entry, calls);
      if (forgotten.ok()) return record;
      if (forgotten.error().code != ErrorCode::kConflict) return forgotten.error();
      continue;  // another call was first
    }
    if (context.Expired()) return record;
    AwaitAnEnd(context.WithStop(stop_.get_token()), ends_before);
  }
}

std::optional<std::string> Tickets::PathOf(const Context& context, const TicketRecord& record, const Credentials& who) {
  if (!MayListAbove(context, at_.names, who, record.to_parent)) return std::nullopt;
  return at_.names.PathOf(context, record.to_parent, record.to_name);
}

std::string Tickets::WhatHoldsUp(TicketId id) {
  MutexLock lock(mutex_);
  const auto work = work_.find(id);
  return work == work_.end() ? std::string() : work->second.holds_up;
}

}  // namespace cairnfs::fs
