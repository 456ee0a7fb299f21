// Looking up, making and opening files that appear whole. atomic_closing.cc has the rest.
#include "fs/atomic_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/fair_share.h"
#include "base/log.h"
#include "base/printable.h"
#include "fs/atomic_pending.h"
#include "fs/permissions.h"
#include "fs/processes.h"

namespace cairnfs::fs {
namespace {

// A thread whose open was sent back comes again at once. After so long a look-up is no part of that open any more.
constexpr auto kComesAgainWithin = std::chrono::seconds(10);
// Then it opens what it has found, or the kernel looks the name up once more, at once. After so long nobody finds what
// it has not opened.
constexpr auto kLookedUpTwiceWithin = std::chrono::seconds(1);
// What was not opened after so long never is: its process was killed on the way.
constexpr auto kOpenedAfter = std::chrono::minutes(1);
constexpr size_t kSentBackTidied = 1024;  // more than so many threads are looked through for old ones

}  // namespace

// Also where the rule is gone since a file was begun.
bool AtomicFiles::IsAskedEachTime(InodeId directory, std::string_view name) {
  if (IsPending(directory, name) || IsMoved(directory, name)) return true;
  if (at_.services.atomic_rules.AreNone()) return false;
  const auto rule = at_.services.atomic_rules.Of({}, directory, name);
  return !rule.ok() || *rule != nullptr;
}

bool AtomicFiles::IsPending(InodeId directory, std::string_view name) {
  if (pending_count_ == 0) return false;
  MutexLock lock(mutex_);
  const auto found = by_name_.lower_bound(Key{directory, std::string(name), {}, {}});
  return found != by_name_.end() && std::get<0>(found->first) == directory && std::get<1>(found->first) == name;
}

AtomicFiles::PendingPtr AtomicFiles::FindLocked(const Place& place, const ProcessId& process) {
  for (auto at = by_name_.lower_bound(Key{place.directory, place.name, process, {}}); at != by_name_.end(); ++at) {
    const auto& [directory, name, of_process, inode] = at->first;
    if (directory != place.directory || name != place.name || of_process != process) break;
    const Pending& pending = *at->second;
    const bool is_left = !pending.is_opened && Clock::Now() - pending.made_at > kLookedUpTwiceWithin;
    if (!pending.is_ending && !pending.is_killed && !is_left) return at->second;
  }
  return nullptr;
}

AtomicFiles::PendingPtr AtomicFiles::FindOwn(uint32_t thread, InodeId directory, std::string_view name) {
  if (!IsPending(directory, name)) return nullptr;
  const ProcessId process = ProcessIdOf(thread);
  MutexLock lock(mutex_);
  return FindLocked({directory, std::string(name)}, process);
}

AtomicFiles::PendingPtr AtomicFiles::Find(InodeId inode) {
  if (pending_count_ == 0) return nullptr;
  MutexLock lock(mutex_);
  const auto found = by_inode_.find(inode);
  return found == by_inode_.end() ? nullptr : found->second;
}

PlacesToCome AtomicFiles::GetPlacesToCome() {
  PlacesToCome places;
  if (pending_count_ == 0) return places;
  MutexLock lock(mutex_);
  for (const auto& [inode, pending] : by_inode_) {
    if (pending->is_opened && !pending->is_killed) places[inode] = {pending->directory, pending->name};
  }
  return places;
}

std::string AtomicFiles::PathOf(const Context& context, InodeId inode) {
  meta::Namespace& names = at_.services.parts.names;
  const PendingPtr pending = Find(inode);
  return pending ? names.PathOf(context, pending->directory, pending->name) : names.PathOfInode(context, inode);
}

Result<meta::Attr> AtomicFiles::LookUp(const Context& context, const Pending& pending) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, at_.names.GetAttr(context, pending.inode));
  at_.services.table.AddLookup(attr.inode)->directory = pending.directory.value;
  return attr;
}

Result<meta::Attr> AtomicFiles::Lookup(const Context& context, uint32_t thread, InodeId directory,
                                       std::string_view name) {
  if (const PendingPtr own = FindOwn(thread, directory, name)) return LookUp(context, *own);
  return at_.names.Lookup(context, directory, name);
}

bool AtomicFiles::IsSentBack(uint32_t thread) {
  if (sent_back_count_ == 0) return false;
  MutexLock lock(mutex_);
  const auto found = sent_back_.find(thread);
  return found != sent_back_.end() && !found->second.looked_up;
}

std::optional<AtomicFiles::SentBack> AtomicFiles::TakeSentBack(uint32_t thread) {
  if (sent_back_count_ == 0) return std::nullopt;
  std::optional<SentBack> taken;
  {
    MutexLock lock(mutex_);
    const auto found = sent_back_.find(thread);
    if (found == sent_back_.end()) return std::nullopt;
    taken = found->second;
    sent_back_.erase(found);
    sent_back_count_ = sent_back_.size();
  }
  const bool is_old = Clock::Now() - taken->at > kComesAgainWithin || taken->started != StartOf(thread);
  return is_old ? std::nullopt : taken;
}

void AtomicFiles::NoteSentBack(uint32_t thread, const SentBack& sent_back) {
  MutexLock lock(mutex_);
  if (sent_back_.size() > kSentBackTidied) {
    std::erase_if(sent_back_, [&](const auto& item) { return sent_back.at - item.second.at > kComesAgainWithin; });
  }
  sent_back_.insert_or_assign(thread, sent_back);
  sent_back_count_ = sent_back_.size();
}

Status AtomicFiles::CheckSeen(const Caller& caller, InodeId directory, InodeId inode) {
  if (caller.pid != 0) return {};
  const auto name = at_.services.parts.names.NameIn(caller.context, directory, inode);
  if (!name.ok()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const AtomicRulePtr rule, at_.services.atomic_rules.Of(caller.context, directory, *name));
  return rule == nullptr ? Status() : Status(CannotBeSeen(*name));
}

bool AtomicFiles::IsAgain(const SentBack& note, InodeId inode, const Context& context) {
  if (note.inode == inode) return true;
  if (note.name.empty() || !note.looked_up || Clock::Now() - note.at > kLookedUpTwiceWithin) return false;
  const InodePtr known = at_.services.table.Find(inode);
  if (known && known->unlinked) return true;  // nobody else finds it any more
  const auto now = at_.services.parts.names.Lookup(context, note.directory, note.name);
  return now.ok() && now->inode == inode;
}

// An open names the file alone, and no answer to it can name another one. So the kernel is to look the path up again,
// and finds the new file there. An open by /proc/self/fd looks nothing up: the file itself is opened then.
Result<std::optional<AtomicFiles::SentBack>> AtomicFiles::MustSendBack(InodeId inode, const Caller& caller) {
  AtomicRules& rules = at_.services.atomic_rules;
  const auto before = TakeSentBack(caller.pid);
  const bool is_again = before && IsAgain(*before, inode, caller.context);
  if (is_again && before->looked_up) CAIRNFS_RETURN_IF_ERROR(*before->looked_up);
  if (rules.AreNone() || is_again) return std::optional<SentBack>();
  const InodePtr known = at_.services.table.Find(inode);
  const InodeId directory{known ? known->directory.load() : 0};
  if (directory.value != 0) {
    CAIRNFS_ASSIGN_OR_RETURN(const AtomicRulePtr rule, rules.Of(caller.context, directory));
    if (rule == nullptr) {
      // This one may be walked by another of its names than the last that was looked up.
      CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.services.parts.names.GetAttr(caller.context, inode));
      if (attr.nlink < 2) return std::optional<SentBack>();
    }
    CAIRNFS_RETURN_IF_ERROR(CheckSeen(caller, directory, inode));
  }
  if (caller.pid == 0) return std::optional<SentBack>();
  return std::optional(
      SentBack{.inode = inode, .directory = directory, .started = StartOf(caller.pid), .at = Clock::Now()});
}

void AtomicFiles::Open(InodeId inode, const OpenFlags& flags, Done<HandleId> done, const Caller& caller) {
  if (const PendingPtr pending = Find(inode)) return OpenPending(pending, flags, done, caller);
  if (flags.truncate) {
    auto sent_back = MustSendBack(inode, caller);
    if (!sent_back.ok()) return done(sent_back.error());
    if (*sent_back) {
      NoteSentBack(caller.pid, **std::move(sent_back));
      // The kernel looks it up once more only. So it is to find the node id then by which the open will do.
      static_cast<void>(at_.open_files.MustGoBeside(inode, caller.pid));
      return done(MakeError(ErrorCode::kStale, "the path is to be looked up again"));
    }
  }
  at_.open_files.Open(inode, flags, std::move(done), caller);
}

void AtomicFiles::OpenPending(const PendingPtr& pending, OpenFlags flags, const Done<HandleId>& done,
                              const Caller& caller) {
  static_cast<void>(TakeSentBack(caller.pid));
  const bool writes = flags.write || flags.truncate;
  bool is_ending = false;
  {
    MutexLock lock(mutex_);
    is_ending = pending->is_ending && flags.truncate;
    // A new file is empty.
    if (!pending->is_opened) flags.truncate = false;
    pending->is_opened |= writes;
  }
  if (is_ending) {
    NoteSentBack(
        caller.pid,
        {.inode = pending->inode, .directory = pending->directory, .started = StartOf(caller.pid), .at = Clock::Now()});
    return done(MakeError(ErrorCode::kStale, "the path is to be looked up again"));
  }
  auto opened = [this, pending, writes, done](Result<HandleId> handle) {
    bool is_left = false;
    {
      MutexLock lock(mutex_);
      if (handle.ok() && writes) pending->writers.insert(*handle);
      is_left = !handle.ok() && pending->writers.empty();
    }
    if (is_left) Leave(pending, "it could not be opened");
    done(std::move(handle));
  };
  at_.open_files.Open(pending->inode, flags, std::move(opened), caller);
}

// Only the last of the names of a path leads to a file, or to nothing while the open may go on. What it leads to may be
// another file by now, which another process, or host, has put there. Where no new file can be made the open is told
// why: the kernel takes an error of a look-up for one of a name that is to be looked up once more.
void AtomicFiles::LookUpSentBack(const Opener& opener, InodeId directory, std::string_view name,
                                 const Done<meta::Attr>& done) {
  const Caller& caller = opener.caller;
  auto found = Lookup(caller.context, caller.pid, directory, name);
  const bool goes_on =
      found.ok() ? S_ISDIR(found->mode) || S_ISLNK(found->mode) : found.error().code != ErrorCode::kNotFound;
  if (goes_on) return done(std::move(found));
  const auto sent_back = TakeSentBack(caller.pid);
  if (!sent_back || (found.ok() && !S_ISREG(found->mode))) return done(std::move(found));
  const bool is_other = sent_back->directory != directory || sent_back->name != name ||
                        Clock::Now() - sent_back->at > kLookedUpTwiceWithin;
  if (!sent_back->name.empty() && is_other) return done(std::move(found));
  const auto rule = at_.services.atomic_rules.Of(caller.context, directory, name);
  const auto note = [this, thread = caller.pid, directory, name = std::string(name), sent_back = *sent_back](
                        InodeId inode, const std::optional<Status>& looked_up) {
    SentBack noted = sent_back;
    noted.inode = inode;
    noted.directory = directory;
    noted.name = name;
    if (sent_back.name.empty()) noted.at = Clock::Now();  // else it is of the same walk
    noted.looked_up = looked_up;
    NoteSentBack(thread, noted);
  };
  if (!found.ok()) {
    if (rule.ok()) note({}, *rule == nullptr ? std::optional(Status()) : std::nullopt);
    return done(std::move(found));
  }
  const auto find_old = [note, file = *found, done](const Status& looked_up) {
    note(file.inode, looked_up);
    done(file);
  };
  if (!rule.ok()) return find_old(rule.error());
  if (*rule == nullptr) return find_old({});
  bool is_its_own = false;
  if (const PendingPtr pending = Find(found->inode)) {
    MutexLock lock(mutex_);
    is_its_own = !pending->is_ending;
  }
  const bool is_wanted = sent_back->inode == found->inode || sent_back->directory == directory;
  if (is_its_own || !is_wanted) return done(std::move(found));
  const Place place{directory, std::string(name), (*rule)->must_be_complete};
  auto make = [this, opener, place, replaced = *found, find_old, done](const Status& admitted) {
    if (!admitted.ok()) return find_old(admitted);
    meta::CreateParams params;
    params.mode = replaced.mode;
    auto made = Make(opener, place, std::move(params), replaced);
    if (!made.ok()) return find_old(made.error());
    at_.names.Forget(replaced.inode, 1);
    done(std::move(made));
  };
  at_.names.WhenAdmitted(NameChange::kMakes, std::move(make), caller);
}

Result<std::optional<meta::Attr>> AtomicFiles::Create(const Opener& opener, InodeId directory, std::string_view name,
                                                      const meta::CreateParams& params, const OpenFlags& flags) {
  const Caller& caller = opener.caller;
  static_cast<void>(TakeSentBack(caller.pid));
  CAIRNFS_ASSIGN_OR_RETURN(const AtomicRulePtr rule, at_.services.atomic_rules.Of(caller.context, directory, name));
  if (rule == nullptr) return std::optional<meta::Attr>();
  if (caller.pid == 0) return CannotBeSeen(name);
  if (const PendingPtr own = FindOwn(caller.pid, directory, name)) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, LookUp(caller.context, *own));
    const Status may = CheckMayOpen(opener.credentials, attr, flags);
    if (may.ok()) return std::optional(std::move(attr));
    at_.names.Forget(attr.inode, 1);
    return may.error();
  }
  // No close of a writer would give it its name.
  if (!flags.write && !flags.truncate) return std::optional<meta::Attr>();
  std::optional<meta::Attr> replaced;
  auto there = at_.services.parts.names.Lookup(caller.context, directory, name);
  if (there.ok()) {
    // The kernel took the name for absent, and has not judged the mode of what is there.
    if (!S_ISREG(there->mode) || !flags.truncate) return std::optional<meta::Attr>();
    CAIRNFS_RETURN_IF_ERROR(CheckMayOpen(opener.credentials, *there, flags));
    replaced = *std::move(there);
  } else if (there.error().code != ErrorCode::kNotFound) {
    return there.error();
  }
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr made,
                           Make(opener, {directory, std::string(name), rule->must_be_complete}, params, replaced));
  return std::optional(std::move(made));
}

void AtomicFiles::Tidy() {
  const auto now = Clock::Now();
  std::vector<PendingPtr> left;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, pending] : by_name_) {
      if (!pending->is_opened && now - pending->made_at > kOpenedAfter) left.push_back(pending);
    }
  }
  for (const PendingPtr& pending : left) Leave(pending, "nobody has opened it");
}

Status AtomicFiles::CheckRoom(uint32_t uid) {
  Tidy();
  MutexLock lock(mutex_);
  const auto own = by_user_.find(uid);
  const size_t count = own == by_user_.end() ? 0 : own->second;
  if (HasShare(count, by_inode_.size(), kPendingMax)) return {};
  return MakeError(ErrorCode::kBusy, "user " + std::to_string(uid) + " writes " + std::to_string(count) +
                                         " files that are to appear whole, and there is room for no more: close some");
}

// Set-id bits and capabilities go, as with any write.
Status AtomicFiles::CopyAttributes(const Context& context, InodeId from, InodeId to) {
  meta::Namespace& names = at_.services.parts.names;
  CAIRNFS_ASSIGN_OR_RETURN(const auto attributes, names.ListXattrs(context, from));
  for (const std::string& attribute : attributes) {
    if (attribute == meta::kCapabilityXattr) continue;
    const auto value = names.GetXattr(context, from, attribute);
    if (!value.ok() && value.error().code == ErrorCode::kNoData) continue;
    if (!value.ok()) return value.error();
    SyncRounds::Operation operation(at_.services.rounds);
    CAIRNFS_RETURN_IF_ERROR(names.SetXattr(context, to, attribute, *value, meta::Namespace::XattrMode::kSet));
  }
  return {};
}

Result<meta::Attr> AtomicFiles::Make(const Opener& opener, const Place& place, meta::CreateParams params,
                                     const std::optional<meta::Attr>& replaced) {
  const Caller& caller = opener.caller;
  CAIRNFS_RETURN_IF_ERROR(CheckRoom(caller.uid));
  params.without_name = true;
  params.uid = caller.uid;
  params.gid = caller.gid;
  if (replaced) {
    params.mode = replaced->mode & ~static_cast<uint32_t>(S_ISUID | S_ISGID);
    params.owner = meta::CreateParams::Owner{replaced->uid, replaced->gid};
  }
  // Open for as long as it has no name, and for reading its format.
  const OpenFlags kept_open{.read = true, .no_atime = true};
  CAIRNFS_ASSIGN_OR_RETURN(const FileSystem::Created created,
                           at_.open_files.Create(caller.context, place.directory, place.name, params, kept_open));
  auto pending = std::make_shared<Pending>(Pending{.inode = created.attr.inode,
                                                   .directory = place.directory,
                                                   .name = place.name,
                                                   .process = ProcessIdOf(caller.pid),
                                                   .opener = opener.credentials,
                                                   .replaces = replaced ? std::optional(replaced->inode) : std::nullopt,
                                                   .must_be_complete = place.must_be_complete,
                                                   .kept_open = created.handle,
                                                   .made_at = Clock::Now()});
  const auto drop = [&](Result<meta::Attr> answer) {
    Drop(created.attr.inode, created.handle);
    at_.names.Forget(created.attr.inode, 1);
    return answer;
  };
  if (replaced) {
    const Status copied = CopyAttributes(caller.context, replaced->inode, pending->inode);
    if (!copied.ok()) return drop(copied.error());
  }
  PendingPtr other;
  {
    MutexLock lock(mutex_);
    other = FindLocked(place, pending->process);
    if (!other) {
      by_name_.emplace(Key{place.directory, place.name, pending->process, pending->inode}, pending);
      by_inode_.emplace(pending->inode, pending);
      by_user_[pending->opener.uid]++;
      pending_count_ = by_inode_.size();
    }
  }
  // Another thread of the process was quicker, and both write to that one's.
  return other ? drop(LookUp(caller.context, *other)) : created.attr;
}

}  // namespace cairnfs::fs
