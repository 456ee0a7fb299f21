// Operations on names.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <set>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

Failpoint rename_data_durable("fs.rename_data_durable", Failpoint::Kind::kKill);
Failpoint rename_committed("fs.rename_committed", Failpoint::Kind::kKill);

// More than others write to the disk between two looks at its room, 100 ms.
constexpr uint64_t kPlentyBytes = 256 * kMiB;
// So long after bytes found no room the meter is not relied on.
constexpr std::chrono::seconds kNoRoomHolds{10};

}  // namespace

Result<meta::Attr> FileSystem::Lookup(InodeId parent, std::string_view name) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, impl_->ReadAttr([&] { return impl_->parts.names.Lookup(parent, name); }));
  impl_->table.AddLookup(attr.inode);
  return attr;
}

void FileSystem::Forget(InodeId inode, uint64_t count) { impl_->table.Forget(inode, count); }

Result<meta::Attr> FileSystem::GetAttr(InodeId inode) {
  return impl_->ReadAttr([&] { return impl_->parts.names.GetAttr(inode); });
}

Result<std::string> FileSystem::ReadLink(InodeId inode) { return impl_->parts.names.ReadLink(inode); }

void FileSystem::WhenAdmitted(NameChange change, Done<void> go, const Caller& caller) {
  if (impl_->host != nullptr) {
    if (Status session = impl_->AwaitSession(); !session.ok()) return go(session);
  }
  // A crash never leaves a deletion without the data that was to take the place of what it deleted.
  // But what makes room does not wait for room.
  if (impl_->host != nullptr && change == NameChange::kRemoves) {
    auto unless_full = [this, go = std::move(go), thread = caller.pid](const Status& durable) {
      if (!durable.ok() && durable.error().code != ErrorCode::kNoSpace) return go(durable);
      go(impl_->loss_witnesses.Tell(thread));
    };
    return impl_->AfterClosed(caller, std::move(unless_full));
  }
  impl_->rounds->WhenAdmitted(change, std::move(go));
}

Result<meta::Attr> FileSystem::MakeNode(InodeId parent, std::string_view name, const meta::CreateParams& params) {
  SyncRounds::Operation operation(*impl_->rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, impl_->parts.names.Create(parent, name, params));
  impl_->inode_count++;
  impl_->table.AddLookup(attr.inode);
  return attr;
}

Result<meta::Attr> FileSystem::Impl::LinkNow(InodeId inode, InodeId new_parent, std::string_view new_name) {
  SyncRounds::Operation operation(*rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.Link(inode, new_parent, new_name));
  table.AddLookup(attr.inode);
  return ReadAttr([&] { return parts.names.GetAttr(inode); });
}

void FileSystem::Link(InodeId inode, InodeId new_parent, std::string_view new_name, Done<meta::Attr> done,
                      const Caller& caller) {
  if (impl_->host == nullptr) return done(impl_->LinkNow(inode, new_parent, new_name));
  const auto may_lack = impl_->host->levels().MayLackCopies(inode, new_parent);
  if (!may_lack.ok()) return done(may_lack.error());
  if (!*may_lack) return done(impl_->LinkNow(inode, new_parent, new_name));
  auto link = [this, inode, new_parent, name = std::string(new_name), caller, done] {
    const Status covered = impl_->CoveringFor(caller).CoverFile(inode);
    if (!covered.ok()) return done(covered.error());
    done(impl_->LinkNow(inode, new_parent, name));
  };
  impl_->PostToWait(caller, std::move(link), [done](const Status& refused) { done(refused.error()); });
}

void FileSystem::Impl::NoteRemoved(const meta::Attr& attr) {
  if (attr.nlink > 0) return;
  inode_count--;
  if (attr.allocated_bytes > 0) free_count++;
  table.MarkUnlinked(attr.inode, (attr.mode & S_IFMT) == S_IFREG ? attr.allocated_bytes : 0);
  ForgetLostInode(attr.inode);
}

void FileSystem::Impl::NoteFreed(uint64_t bytes) {
  if (bytes > 0) free_count++;
  collector->NoteFreed(bytes);
}

Status FileSystem::Unlink(InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(*impl_->rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, impl_->parts.names.Unlink(parent, name));
  impl_->NoteRemoved(attr);
  return {};
}

Status FileSystem::Rmdir(InodeId parent, std::string_view name) {
  SyncRounds::Operation operation(*impl_->rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, impl_->parts.names.Rmdir(parent, name));
  impl_->NoteRemoved(attr);
  return {};
}

Result<bool> FileSystem::Impl::CommitRename(const meta::RenameParams& params) {
  SyncRounds::Operation operation(*rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::RenameResult result, parts.names.Rename(params));
  if (result.replaced) NoteRemoved(*result.replaced);
  return result.replaced.has_value();
}

// The answer to a rename that was made and should be durable now. One that is not fails, and the kernel then keeps the
// names as they were: so do we. Where the old target is gone the rename stays, and the answer is kInterrupted, upon
// which the kernel looks both names up again: it would else take the new file for the one under the old name, and who
// tries again would truncate it. Who was killed meanwhile has no use for an answer, and the kernel shall know the new
// names.
Status FileSystem::Impl::FinishRename(const meta::RenameParams& params, bool replaced, const Status& durable) {
  if (durable.ok() || durable.error().code == ErrorCode::kInterrupted) return {};
  const auto stays = [&] {
    return MakeError(ErrorCode::kInterrupted, "the rename is made and not durable: " + durable.error().message);
  };
  if (replaced) {
    spdlog::error("rename of '{}' to '{}' is made and not durable: {}", params.from_name, params.to_name,
                  durable.error().message);
    return stays();
  }
  meta::RenameParams back{params.to_parent, params.to_name, params.from_parent, params.from_name,
                          params.mode == meta::RenameMode::kExchange ? params.mode : meta::RenameMode::kNoReplace};
  if (auto undone = CommitRename(back); !undone.ok()) {
    spdlog::error("rename of '{}' to '{}' is not durable and could not be undone: {}", params.from_name, params.to_name,
                  undone.error().message);
    return stays();
  }
  return durable;
}

void FileSystem::Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  if (impl_->host != nullptr) return impl_->RenameShared(params, caller, std::move(done));
  auto source = impl_->parts.names.Lookup(params.from_parent, params.from_name);
  if (!source.ok()) return done(source.error());
  bool directory = (source->mode & S_IFMT) == S_IFDIR;
  std::vector<InodeId> files{source->inode};
  if (!directory && params.mode == meta::RenameMode::kExchange) {
    auto target = impl_->parts.names.Lookup(params.to_parent, params.to_name);
    if (!target.ok()) return done(target.error());
    directory = (target->mode & S_IFMT) == S_IFDIR;
    files.push_back(target->inode);
  }
  if (directory) return impl_->RenameDirectory(params, caller, std::move(done));
  if (impl_->options.durable_file_rename) return impl_->RenameFileDurably(params, files, caller, std::move(done));
  impl_->RenameFile(params, files, caller, std::move(done));
}

Status FileSystem::Impl::PrepareForNewNames(std::span<const InodeId> files) {
  for (InodeId id : files) CAIRNFS_RETURN_IF_ERROR(PrepareForNewName(id));
  return {};
}

// Whatever round takes the new name of a file takes every byte written before it. The error of a write that failed and
// that nobody was told is told now; so is that of the disk, which will take neither the bytes nor the name.
Status FileSystem::Impl::PrepareForNewName(InodeId id) {
  if (auto failure = rounds->DiskFailure()) return *failure;
  InodePtr inode = table.Find(id);
  if (!inode) return {};
  MutexLock lock(inode->mutex);
  if (inode->error && !inode->error_told) {
    inode->error_told = true;
    return *inode->error;
  }
  if (!inode->content) return {};
  // One that is not whole must not take the place of a good file, of which a crash would leave nothing: it gets no new
  // name for as long as that is so. Among other hosts the round that a rename waits for tells (CheckPublished).
  if (host == nullptr) {
    if (auto why = inode->content->WhyNotWhole()) return *why;
  }
  inode->content->must_publish = true;
  return {};
}

// Whether bytes of the files, or their recipes, that are still on their way to the disk may find no room there: what
// was reserved for them is an estimate, and the disk has other users.
bool FileSystem::Impl::MayFindNoRoom(std::span<const InodeId> files) {
  const bool was_short = std::chrono::steady_clock::now() - no_room_at.load() < kNoRoomHolds;
  if (!was_short && parts.local_chunks.AvailableBytes() >= kPlentyBytes) return false;
  return std::any_of(files.begin(), files.end(), [&](InodeId id) {
    InodePtr inode = table.Find(id);
    if (!inode) return false;
    MutexLock lock(inode->mutex);
    return inode->content && inode->content->changed;
  });
}

void FileSystem::Impl::RenameFile(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                  const Caller& caller, Done<void> done) {
  if (!MayFindNoRoom(files)) return RenameWhenAdmitted(params, files, std::move(done));
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  // A round ends once it is known how their bytes fared. How those of others did is no reason to refuse this rename,
  // and not for this caller to be told; one that failed may not have come to these.
  auto rename = [this, params, files, done = std::move(done)](const Status& round) {
    if (!round.ok() && (round.error().code == ErrorCode::kInterrupted || MayFindNoRoom(files))) return done(round);
    RenameWhenAdmitted(params, files, done);
  };
  rounds->Request(UnlessKilled(caller, std::move(rename)), SyncRounds::Scope::kNames);
}

void FileSystem::Impl::RenameWhenAdmitted(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                          Done<void> done) {
  rounds->WhenAdmitted(NameChange::kAlters, [this, params, files, done = std::move(done)](Status admitted) {
    if (admitted.ok()) admitted = PrepareForNewNames(files);  // it may have waited for a round
    if (!admitted.ok()) return done(admitted);
    auto renamed = CommitRename(params);
    done(renamed.ok() ? Status() : Status(renamed.error()));
  });
}

// In the order of a directory's rename: what fails before the new name is shown leaves everything as it was.
void FileSystem::Impl::RenameFileDurably(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                         const Caller& caller, Done<void> done) {
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  auto commit = [this, params, files, caller, done = std::move(done)](Status durable) {
    if (durable.ok()) durable = PrepareForNewNames(files);  // what was written meanwhile
    if (!durable.ok()) return done(durable);
    auto renamed = CommitRename(params);
    if (!renamed.ok()) return done(renamed.error());
    auto finish = [this, params, replaced = *renamed, done](const Status& named) {
      done(FinishRename(params, replaced, named));
    };
    rounds->Request(UnlessKilled(caller, std::move(finish)), SyncRounds::Scope::kNames);
  };
  rounds->Request(UnlessKilled(caller, std::move(commit)));
}

void FileSystem::Impl::NoteLost(const InodePtr& inode) {
  if (inode->unlinked) return;
  MutexLock lock(lost_mutex);
  // Held for as long as it has lost bytes: they are remembered nowhere else.
  if (lost_inodes.insert(inode->id).second) table.Hold(inode->id);
}

void FileSystem::Impl::ForgetLostInode(InodeId id) {
  {
    MutexLock lock(lost_mutex);
    if (lost_inodes.erase(id) == 0) return;  // somebody else did
  }
  if (InodePtr inode = table.Find(id)) table.Unhold(inode);
}

std::set<InodeId> FileSystem::Impl::LostInodes() {
  std::set<InodeId> known;
  {
    MutexLock lock(lost_mutex);
    known = lost_inodes;
  }
  for (InodeId id : std::set<InodeId>(known)) {
    InodePtr inode = table.Find(id);
    bool forgotten = false;
    if (inode) {
      MutexLock lock(inode->mutex);
      if (inode->content && !inode->content->lost.empty() && !inode->unlinked) continue;
      MutexLock list(lost_mutex);
      forgotten = lost_inodes.erase(id) > 0;  // if not, somebody else did
    }
    known.erase(id);
    if (forgotten) table.Unhold(inode);
  }
  return known;
}

Result<std::map<InodeId, std::string>> FileSystem::Impl::FindNames(InodeId directory, std::set<InodeId> inodes) {
  constexpr size_t kEntriesPerRead = 1024;
  std::map<InodeId, std::string> found;
  std::vector<std::pair<InodeId, std::string>> todo{{directory, ""}};
  while (!todo.empty() && !inodes.empty()) {
    auto [inode, path] = std::move(todo.back());
    todo.pop_back();
    std::string after;
    for (;;) {
      CAIRNFS_ASSIGN_OR_RETURN(auto entries, parts.names.ReadDirectory(inode, after, kEntriesPerRead));
      if (entries.empty()) break;
      for (const meta::DirectoryEntry& entry : entries) {
        if (inodes.erase(entry.inode) > 0) found.emplace(entry.inode, path + entry.name);
        if (entry.type == S_IFDIR) todo.emplace_back(entry.inode, path + entry.name + "/");
      }
      after = entries.back().name;
    }
  }
  return found;
}

Status FileSystem::Impl::CheckNothingLost(const meta::RenameParams& params) {
  std::set<InodeId> lost = LostInodes();
  if (lost.empty()) return {};
  auto check = [&](InodeId parent, const std::string& name) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.Lookup(parent, name));
    std::optional<std::string> path;
    if (lost.contains(attr.inode)) path = name;
    if ((attr.mode & S_IFMT) == S_IFDIR) {
      CAIRNFS_ASSIGN_OR_RETURN(auto below, FindNames(attr.inode, lost));
      if (!below.empty()) path = name + "/" + below.begin()->second;
    }
    if (!path) return {};
    return MakeError(ErrorCode::kIo,
                     "bytes of '" + *path + "' could not be stored and are lost: write the file again or remove it");
  };
  CAIRNFS_RETURN_IF_ERROR(check(params.from_parent, params.from_name));
  if (params.mode != meta::RenameMode::kExchange) return {};
  return check(params.to_parent, params.to_name);
}

// Waits until everything written before is durable, shows the new name, and makes that durable too.
void FileSystem::Impl::RenameDirectory(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  auto commit = [this, params, caller, done = std::move(done)](Status durable) mutable {
    if (durable.ok()) {
      rename_data_durable.Pass();
      durable = CheckNothingLost(params);
    }
    if (!durable.ok()) {
      spdlog::error("rename of '{}' to '{}' refused: {}", params.from_name, params.to_name, durable.error().message);
      return done(durable);
    }
    auto renamed = CommitRename(params);
    if (!renamed.ok()) return done(renamed.error());
    rename_committed.Pass();
    // Only the name is still owed: what has no space meanwhile is others', and no reason to deny what has happened.
    auto finish = [this, params, replaced = *renamed, done = std::move(done)](const Status& named) {
      done(FinishRename(params, replaced, named));
    };
    RequestUnlessCancelled(caller, std::move(finish), SyncRounds::Scope::kNames);
  };
  RequestUnlessCancelled(caller, std::move(commit));
}

void FileSystem::Impl::RequestUnlessCancelled(const Caller& caller, Done<void> done, SyncRounds::Scope scope) {
  const unsigned seconds_max = options.commit_wait_seconds_max;
  auto answer = UnlessCancelled(
      caller, std::chrono::steady_clock::now() + std::chrono::seconds(seconds_max), [this] { return TookTooLong(); },
      std::move(done));
  rounds->Request(std::move(answer), scope);
}

SyncRounds::Answer FileSystem::Impl::UnlessKilled(const Caller& caller, Done<void> done) {
  if (!caller.cancelled) {
    return [done = std::move(done)](const Status& status) {
      done(status);
      return true;
    };
  }
  return UnlessCancelled(caller, std::chrono::steady_clock::time_point::max(), {}, std::move(done));
}

// The wait for a round may end before the round does, which then tells nobody what it waits for.
Error FileSystem::Impl::TookTooLong() const {
  const std::string seconds_max = std::to_string(options.commit_wait_seconds_max);
  const std::string lacking = host != nullptr ? host->WhatIsLacking() : "";
  return MakeError(ErrorCode::kUnavailable, "the data did not become durable in " + seconds_max +
                                                " s (commit_wait_max)" + (lacking.empty() ? "" : ": " + lacking));
}

SyncRounds::Answer FileSystem::Impl::UnlessCancelled(const Caller& caller,
                                                     std::chrono::steady_clock::time_point deadline,
                                                     std::function<Error()> late, Done<void> done) {
  auto wait = std::make_shared<Wait>();
  wait->cancelled = caller.cancelled;
  wait->deadline = deadline;
  wait->late = std::move(late);
  wait->done = std::move(done);
  {
    MutexLock lock(waits_mutex);
    waits.push_back(wait);
    waits_wake.NotifyOne();
  }
  return [wait](const Status& status) {
    Done<void> answer;
    {
      MutexLock lock(wait->mutex);
      if (std::exchange(wait->answered, true)) return false;
      answer = std::move(wait->done);
    }
    answer(status);
    return true;
  };
}

void FileSystem::Impl::WatchWaits() {
  for (;;) {
    std::vector<std::shared_ptr<Wait>> current;
    {
      MutexLock lock(waits_mutex);
      while (waits.empty() && !waits_stopping) waits_wake.Wait(waits_mutex);
      if (waits_stopping) return;
      std::erase_if(waits, [](const auto& wait) {
        MutexLock answer(wait->mutex);
        return wait->answered;
      });
      current = waits;
    }
    auto now = std::chrono::steady_clock::now();
    for (const auto& wait : current) {
      bool killed = false;
      Done<void> answer;
      {
        MutexLock lock(wait->mutex);
        if (wait->answered) continue;
        killed = wait->cancelled && wait->cancelled();
        if (!killed && now < wait->deadline) continue;
        wait->answered = true;
        answer = std::move(wait->done);
      }
      answer(killed ? MakeError(ErrorCode::kInterrupted, "the caller was killed while it waited") : wait->late());
    }
    MutexLock lock(waits_mutex);
    if (!waits_stopping && !current.empty()) waits_wake.WaitFor(waits_mutex, std::chrono::milliseconds(20));
  }
}

void FileSystem::SetAttr(InodeId id, const SetAttrRequest& request, Done<meta::Attr> done, const Caller& caller) {
  auto set = [this, id, request, caller, done = std::move(done)](const Status& admitted) {
    if (!admitted.ok()) return done(admitted.error());
    SetAttrNow(id, request, done, caller);
  };
  WhenAdmitted(NameChange::kAlters, std::move(set), caller);
}

meta::AttrChanges FileSystem::Impl::ChangesOf(const SetAttrRequest& request, const meta::Attr& before, Timestamp now) {
  meta::AttrChanges changes;
  changes.mode = request.mode;
  changes.uid = request.uid;
  changes.gid = request.gid;
  changes.atime = request.atime_now ? now : request.atime;
  if (!S_ISREG(before.mode)) changes.mtime = request.mtime_now ? now : request.mtime;
  // The kernel never clears these bits of a directory.
  if (request.kill_suid_sgid && !request.mode && !S_ISDIR(before.mode)) {
    uint32_t kept = WithoutSetId(before.mode);
    if (kept != (before.mode & 07777)) changes.mode = kept;
  }
  return changes;
}

void FileSystem::SetAttrNow(InodeId id, const SetAttrRequest& request, const Done<meta::Attr>& done,
                            const Caller& caller) {
  auto before = impl_->parts.names.GetAttr(id);
  if (!before.ok()) return done(before.error());
  const bool regular = S_ISREG(before->mode);
  // What cannot be done changes nothing.
  if (request.size && !regular) {
    return done(MakeError(S_ISDIR(before->mode) ? ErrorCode::kIsDirectory : ErrorCode::kInvalidArgument,
                          "only a regular file can be truncated"));
  }
  if (request.size && *request.size > kFileSizeMax) {
    return done(MakeError(ErrorCode::kTooLarge, "file size past the format's limit"));
  }
  uint64_t session = 0;
  if (impl_->host != nullptr && request.size && request.handle) {
    const HandlePtr handle = impl_->handles.Find(*request.handle);
    if (!handle) return done(MakeError(ErrorCode::kStale, "the file is not open"));
    if (const Status same = impl_->CheckSession(*handle); !same.ok()) return done(same.error());
    session = handle->session;
  }
  if (impl_->host != nullptr && request.mode) {
    if (InodePtr known = impl_->table.Find(id)) known->no_set_id = false;
  }
  Timestamp now = impl_->parts.clock.Now();
  std::optional<Timestamp> mtime = request.mtime_now ? now : request.mtime;
  const meta::AttrChanges changes = Impl::ChangesOf(request, *before, now);
  if (regular && (request.uid || request.gid || request.size)) {
    InodePtr inode = impl_->table.Hold(id);
    impl_->KillCapability(inode);
    impl_->table.Unhold(inode);
  }
  if (changes.mode || changes.uid || changes.gid || changes.atime || changes.mtime) {
    SyncRounds::Operation operation(*impl_->rounds);
    auto changed = impl_->parts.names.SetAttr(id, changes);
    if (!changed.ok()) return done(changed.error());
  }
  if (!regular || (!request.size && !mtime)) return done(GetAttr(id));
  InodePtr inode = impl_->table.Hold(id);
  auto change = [this, inode, size = request.size, mtime, now](Content& content) -> Status {
    inode->mutex.AssertHeld();
    if (size) CAIRNFS_RETURN_IF_ERROR(impl_->Truncate(inode, content, *size));
    if (mtime) content.mtime = *mtime;
    content.ctime = now;
    if (content.shared) content.shared->own.times_are_set = true;
    content.must_publish = true;
    return {};
  };
  auto finish = [this, inode, done](Status status) {
    Result<meta::Attr> attr = status.ok() ? GetAttr(inode->id) : Result<meta::Attr>(status.error());
    impl_->table.Unhold(inode);
    done(std::move(attr));
  };
  const bool empties = request.size == uint64_t{0};
  if (impl_->host != nullptr) {
    const bool cuts = request.size.has_value();
    const Impl::ChangeKind kind{
        .empties = empties, .removes = cuts, .publishes = cuts, .sets_times = !cuts, .session = session};
    return impl_->ChangeShared(inode, change, finish, kind, caller);
  }
  impl_->ChangeWhenQuiet(inode, change, finish, empties);
}

}  // namespace cairnfs::fs
