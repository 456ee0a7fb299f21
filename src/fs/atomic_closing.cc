// The end of files that appear whole: the close that gives them their name, or leaves the old file.
#include <sys/stat.h>

#include <atomic>
#include <future>
#include <memory>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/printable.h"
#include "fs/atomic_files.h"
#include "fs/atomic_pending.h"
#include "fs/permissions.h"
#include "fs/processes.h"
#include "retention/file_format.h"

namespace cairnfs::fs {
namespace {

// What was just written is in memory, or on this host's disk.
constexpr auto kReadMax = std::chrono::minutes(1);
// For so long a rename that was sent back may come again, and the kernel may take to move the name.
constexpr auto kMovedWithin = std::chrono::seconds(10);

Failpoint before_name("fs.atomic_before_name", Failpoint::Kind::kKill);
Failpoint after_name("fs.atomic_after_name", Failpoint::Kind::kKill);

}  // namespace

void AtomicFiles::Stop() {
  looks_.Stop();
  MutexLock lock(mutex_);
  auto checks = std::move(checks_);
  lock.Unlock();
  checks.reset();
  lock.Lock();
}

void AtomicFiles::PostCheck(uint32_t uid, std::function<void()> check) {
  MutexLock lock(mutex_);
  if (checks_ == nullptr) checks_ = std::make_unique<TaskQueue>("cairn-whole", 1);
  to_check_.Add(uid, std::move(check));
  checks_->Post([this] {
    MutexLock taking(mutex_);
    const auto next = to_check_.Take();  // there is one, and none is under way
    taking.Unlock();
    next->item();
    taking.Lock();
    to_check_.NoteDone(next->uid);
  });
}

bool AtomicFiles::IsWriter(const Pending& pending, HandleId handle) {
  MutexLock lock(mutex_);
  return pending.writers.contains(handle) && !pending.is_ending;
}

bool AtomicFiles::NoteEnd(Pending& pending, bool is_killed) {
  MutexLock lock(mutex_);
  pending.is_killed |= is_killed;
  return pending.is_killed;
}

void AtomicFiles::NoteFailed(Pending& pending, const Error& why) {
  MutexLock lock(mutex_);
  if (!pending.failure) pending.failure = why;
}

// The kernel sends a close for each dup, fork and exec. That of the process which opened the file counts, once it has
// no other descriptor of it. Who cannot be seen counts as killed.
void AtomicFiles::Flush(InodeId inode, const Closing::Descriptor& closed, Done<void> done, const Caller& caller) {
  const PendingPtr pending = Find(inode);
  if (pending == nullptr || !IsWriter(*pending, closed.handle)) {
    return at_.open_files.Flush(closed, std::move(done), caller);
  }
  // An error is told once, to whoever closes first.
  auto flush = [this, pending, closed, caller](const Done<void>& flushed) {
    auto note = [this, pending, flushed](const Status& status) {
      if (!status.ok()) NoteFailed(*pending, status.error());
      flushed(status);
    };
    at_.open_files.Flush(closed, std::move(note), caller);
  };
  const auto end = EndOf(caller.pid);
  // A number of a process is used again only after its last close, and by then the file has its name or is dropped.
  if (end && ProcessOf(caller.pid) != pending->process.number) return flush(done);
  if (NoteEnd(*pending, !end || (end->is_exiting && end->by_signal))) {
    if (end && end->is_exiting) return flush(done);
    const Error lost =
        end ? MakeError(ErrorCode::kIo, "the process that opened the file was killed") : CannotBeSeen(pending->name);
    return flush([done, lost](const Status& status) { done(status.ok() ? Status(lost) : status); });
  }
  auto killed = [this, pending, flush, done](const Status&) {
    static_cast<void>(NoteEnd(*pending, true));
    flush(done);
  };
  auto judge = [this, pending, caller, flush, done](bool has_closed) {
    if (!BeginsEnd(*pending, has_closed)) return flush(done);
    flush([this, pending, caller, done](const Status& status) {
      if (status.ok()) return Publish(pending, caller, done);
      Leave(pending, status.error().message);
      done(status);
    });
  };
  looks_.CheckClosed(caller, inode, [this, caller, killed, judge](const Status& closed_by_process) {
    if (!closed_by_process.ok() && closed_by_process.error().code == ErrorCode::kInterrupted) return killed({});
    at_.services.calls.RunToWait(
        caller, [judge, has_closed = closed_by_process.ok()] { judge(has_closed); }, killed);
  });
}

bool AtomicFiles::BeginsEnd(Pending& pending, bool has_closed) {
  MutexLock lock(mutex_);
  pending.is_closed = true;
  if (!has_closed || pending.is_ending || pending.is_killed) return false;
  pending.is_ending = true;
  return true;
}

void AtomicFiles::Release(InodeId inode, HandleId handle) {
  const PendingPtr pending = Find(inode);
  bool is_last = false, may_have_name = false;
  if (pending != nullptr) {
    MutexLock lock(mutex_);
    const bool was_writer = pending->writers.erase(handle) > 0;
    is_last = was_writer && pending->writers.empty() && !pending->is_ending;
    may_have_name = pending->is_closed && !pending->is_killed;
    if (is_last) pending->is_ending = true;
  }
  at_.open_files.Release(handle);
  if (!is_last) return;
  if (!may_have_name) return Leave(pending, "its writer was killed, or cannot be seen");
  // The process had no descriptor after all: nobody waits for this.
  Caller nobody;
  nobody.uid = pending->opener.uid;
  const bool is_posted =
      at_.services.calls.Run([this, pending, nobody] { Publish(pending, nobody, [](const Status&) {}); });
  if (!is_posted) Leave(pending, "this host stops");
}

void AtomicFiles::NoteWriteFailed(InodeId inode, const Error& why) {
  using Code = ErrorCode;
  const PendingPtr pending = Find(inode);
  // Who is told that it does not work so, or that it was interrupted, does it in another way, or again.
  const bool goes_on =
      why.code == Code::kInvalidArgument || why.code == Code::kNotSupported || why.code == Code::kInterrupted;
  if (pending != nullptr && !goes_on) NoteFailed(*pending, why);
}

// What the file has by now, though it may be on its way to the disk.
std::optional<std::string> AtomicFiles::WhyCutShort(const Pending& pending, const Caller& caller) {
  ReadOptions options;
  options.caller = caller;
  options.caller.context = caller.context.WithTimeout(kReadMax);
  const auto attr = at_.names.GetAttr({}, pending.inode);
  if (!attr.ok()) return attr.error().message;
  const auto read = [&](uint64_t offset, size_t size) -> Result<std::string> {
    std::promise<Result<std::string>> promise;
    auto answer = [&promise](Result<FileSystem::ReadResult> result) {
      if (!result.ok()) return promise.set_value(result.error());
      std::string bytes;
      for (const io::Slice& slice : result->slices) bytes.append(AsText(slice.bytes()));
      promise.set_value(std::move(bytes));
    };
    at_.reader.Read(pending.kept_open, pending.inode, offset, size, std::move(answer), options);
    return promise.get_future().get();
  };
  return retention::WhyCutShort(pending.name, attr->size, read);
}

void AtomicFiles::Publish(const PendingPtr& pending, const Caller& caller, Done<void> done) {
  std::optional<Error> failure;
  {
    MutexLock lock(mutex_);
    failure = pending->failure;
  }
  if (failure) {
    Leave(pending, "a write failed: " + failure->message);
    return done(*failure);
  }
  auto take_name = [this, pending, caller, done] {
    auto refused = [this, pending, done](const Status& why) {
      Leave(pending, why.error().message);
      done(why);
    };
    at_.services.calls.Run(
        caller, [this, pending, caller, done] { TakeName(pending, caller, done); }, std::move(refused));
  };
  if (!pending->must_be_complete) return take_name();
  PostCheck(pending->opener.uid, [this, pending, caller, done, take_name = std::move(take_name)] {
    const auto why = WhyCutShort(*pending, caller);
    if (!why) return take_name();
    Leave(pending, *why);
    done(MakeError(ErrorCode::kIo, "'" + pending->name + "' keeps what it has: " + *why));
  });
}

Status AtomicFiles::CheckMayTake(const Pending& pending, const Context& context,
                                 const std::optional<meta::RenameParams::Target>& target) {
  const bool is_as_it_was = target ? pending.replaces == target->inode : !pending.replaces;
  if (is_as_it_was) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr directory, at_.services.parts.names.GetAttr(context, pending.directory));
  const auto owner = target ? std::optional(target->uid) : std::nullopt;
  return CheckMayReplace(pending.opener, directory, owner);
}

// Its bytes count for the quota of the directory before anybody sees the name.
void AtomicFiles::TakeName(const PendingPtr& pending, const Caller& caller, const Done<void>& done) {
  at_.names.FollowQuotaOfNamed(pending->inode, pending->directory, caller,
                               [this, pending, caller, done](const Status&) { RenameToName(pending, caller, done); });
}

void AtomicFiles::RenameToName(const PendingPtr& pending, const Caller& caller, const Done<void>& done) {
  meta::RenameParams params;
  params.from_parent = params.to_parent = pending->directory;
  params.from_name = params.to_name = pending->name;
  params.unnamed = pending->inode;
  // kStale would have the rename tried again.
  const auto is_refused = std::make_shared<std::atomic<bool>>(false);
  params.may_take = [this, pending, is_refused, context = caller.context](const auto& target) {
    Status may = CheckMayTake(*pending, context, target);
    *is_refused = !may.ok() && may.error().code == ErrorCode::kPermission;
    return may;
  };
  before_name.Pass();
  at_.names.Rename(params, caller, [this, pending, is_refused, caller, done](const Status& named) {
    after_name.Pass();
    if (named.ok()) {  // it may have come under a quota just then
      return at_.names.FollowQuotaOfNamed(pending->inode, pending->directory, caller,
                                          [this, pending, done](const Status&) {
                                            static_cast<void>(End(pending, IsNamed::kYes));
                                            done({});
                                          });
    }
    if (*is_refused) {
      constexpr const char* kWhy = "the name stands for something else by now, which its opener may not replace";
      Leave(pending, kWhy);
      return done(MakeError(ErrorCode::kStale, kWhy));
    }
    auto settle = [this, pending, named, done] { done(Settle(pending, named.error())); };
    if (!at_.services.calls.Run(settle)) done(named);
  });
}

// The rename has failed, and among several hosts may have been made all the same, or be made yet: then nothing is taken
// away. The file is an orphan if it has no name, and goes as these do.
Status AtomicFiles::Settle(const PendingPtr& pending, const Error& why) {
  const bool is_shared = at_.services.parts.cluster.has_value();
  const auto attr = at_.services.parts.names.GetAttr({}, pending->inode);
  if (attr.ok() && attr->nlink == 0 && !(is_shared && kv::MayHaveRun(why.code))) {
    Leave(pending, why.message);
    return why;
  }
  static_cast<void>(End(pending, IsNamed::kYes));
  if (is_shared && attr.ok() && attr->nlink > 0) return {};
  spdlog::error("'{}' in directory {} has its new content or keeps its old one: {}", Printable(pending->name),
                pending->directory.value, why.message);
  return why;
}

void AtomicFiles::Leave(const PendingPtr& pending, const std::string& why) {
  if (!End(pending, IsNamed::kNo)) return;
  spdlog::warn("'{}' in directory {} keeps what it had, and user {}'s new file is dropped: {}",
               Printable(pending->name), pending->directory.value, pending->opener.uid, Printable(why));
}

// It goes as a file does whose last name was removed.
void AtomicFiles::Drop(InodeId id, HandleId kept_open) {
  meta::Attr attr;
  attr.inode = id;
  attr.mode = S_IFREG;
  if (const InodePtr inode = at_.services.table.Find(id)) {
    MutexLock lock(inode->mutex);
    if (inode->content) attr.allocated_bytes = inode->content->AllocatedBytes();
  }
  {
    SyncRounds::Operation operation(at_.services.rounds);
    at_.changes.NoteRemoved(attr);
  }
  at_.open_files.Release(kept_open);
}

bool AtomicFiles::End(const PendingPtr& pending, IsNamed is_named) {
  {
    MutexLock lock(mutex_);
    if (by_inode_.erase(pending->inode) == 0) return false;
    pending->is_ending = true;
    by_name_.erase(Key{pending->directory, pending->name, pending->process, pending->inode});
    const auto own = by_user_.find(pending->opener.uid);
    if (--own->second == 0) by_user_.erase(own);
    pending_count_ = by_inode_.size();
    if (by_inode_.empty()) moved_.clear();
    moved_count_ = moved_.size();
  }
  if (is_named == IsNamed::kNo) {
    Drop(pending->inode, pending->kept_open);
  } else {
    at_.open_files.Release(pending->kept_open);
  }
  return true;
}

bool AtomicFiles::Unlink(uint32_t thread, InodeId directory, std::string_view name) {
  const PendingPtr own = FindOwn(thread, directory, name);
  return own != nullptr && End(own, IsNamed::kNo);
}

bool AtomicFiles::IsMoved(InodeId directory, std::string_view name) {
  if (moved_count_ == 0) return false;
  MutexLock lock(mutex_);
  const auto found = moved_.find({directory, std::string(name)});
  return found != moved_.end() && Clock::Now() < found->second.until;
}

void AtomicFiles::SetMoved(const meta::RenameParams& params, uint32_t thread, Clock::time_point until) {
  moved_[{params.from_parent, params.from_name}] = {thread, until};
  if (params.mode == meta::RenameMode::kExchange) moved_[{params.to_parent, params.to_name}] = {thread, until};
  moved_count_ = moved_.size();
}

// A thread without a number finds no such files.
bool AtomicFiles::MustLookUpAgain(uint32_t thread, const meta::RenameParams& params) {
  const bool is_onto_one =
      IsPending(params.to_parent, params.to_name) ||
      (params.mode == meta::RenameMode::kExchange && IsPending(params.from_parent, params.from_name));
  if (thread == 0 || !is_onto_one) return false;
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  std::erase_if(moved_, [now](const auto& item) { return item.second.until < now; });
  const auto found = moved_.find({params.from_parent, params.from_name});
  const bool is_again = found != moved_.end() && found->second.thread == thread;
  if (!is_again && moved_.size() >= kPendingMax) return false;
  SetMoved(params, thread, is_again ? Clock::time_point::max() : now + kMovedWithin);
  return !is_again;
}

// What the kernel is told until it has moved the name is told so too.
void AtomicFiles::NoteAnswered(const meta::RenameParams& params) {
  if (moved_count_ == 0) return;
  MutexLock lock(mutex_);
  const auto found = moved_.find({params.from_parent, params.from_name});
  if (found != moved_.end()) SetMoved(params, found->second.thread, Clock::Now() + kMovedWithin);
}

Result<std::optional<meta::RenameParams>> AtomicFiles::BeginRename(uint32_t thread, const meta::RenameParams& params) {
  if (MustLookUpAgain(thread, params)) return MakeError(ErrorCode::kStale, "both names are to be looked up again");
  const PendingPtr own = FindOwn(thread, params.from_parent, params.from_name);
  if (own == nullptr) return std::optional<meta::RenameParams>();
  if (params.mode == meta::RenameMode::kExchange) {
    return MakeError(ErrorCode::kInvalidArgument, "a file that has no name yet cannot be exchanged");
  }
  meta::RenameParams named = params;
  named.unnamed = own->inode;
  return std::optional(std::move(named));
}

// What was renamed has its name, and a file that the process was writing under the new name has none any more.
void AtomicFiles::EndRename(uint32_t thread, const meta::RenameParams& params,
                            const std::optional<meta::RenameParams>& named) {
  const PendingPtr over = FindOwn(thread, params.to_parent, params.to_name);
  if (over != nullptr && (!named || over->inode != *named->unnamed)) static_cast<void>(End(over, IsNamed::kNo));
  if (!named) return;
  if (const PendingPtr own = Find(*named->unnamed)) static_cast<void>(End(own, IsNamed::kYes));
  Caller nobody;
  nobody.context = Context().WithTimeout(kReadMax);
  at_.names.FollowQuotaOfNamed(*named->unnamed, params.to_parent, nobody, [](const Status&) {});
}

}  // namespace cairnfs::fs
