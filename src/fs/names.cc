// Operations on names.
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "fs/impl.h"

namespace cairnfs::fs {

// For handles of files that outlive the kernel's memory of them (name_to_handle_at, NFS).
Result<meta::Attr> FileSystem::Impl::LookUpInode(InodeId id) {
  // First: should its last name go from here on, it stays until it is forgotten.
  table.AddLookup(id);
  Result<meta::Attr> attr = ReadAttr([&] { return parts.names.GetAttr(id); });
  if (attr.ok() && attr->nlink > 0) return attr;
  table.Forget(id, 1);
  if (!attr.ok()) return attr;
  return MakeError(ErrorCode::kNotFound, "inode " + std::to_string(id.value) + " is removed");
}

Result<meta::Attr> FileSystem::Lookup(InodeId parent, std::string_view name) {
  if (name == ".") return impl_->LookUpInode(parent);
  if (name == "..") {
    CAIRNFS_ASSIGN_OR_RETURN(const InodeId above, impl_->parts.names.ParentOf(parent));
    return impl_->LookUpInode(above);
  }
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
  // What was closed and waited for is durable. Stores of an munmap are to be so before what they took the place of is
  // deleted; but what makes room does not wait for room, nor for copies that cannot be made.
  if (impl_->host != nullptr && change == NameChange::kRemoves) {
    if (impl_->rounds->failing()) return go({});
    return impl_->AfterClosed(caller, [go = std::move(go)](const Status& durable) {
      const bool is_killed = !durable.ok() && durable.error().code == ErrorCode::kInterrupted;
      go(is_killed ? durable : Status());
    });
  }
  if (change != NameChange::kMakes) return impl_->rounds->WhenAdmitted(change, std::move(go));
  impl_->rounds->WhenAdmitted(change, [this, uid = caller.uid, go = std::move(go)](const Status& admitted) {
    go(admitted.ok() ? impl_->metadata_room->Admit(uid) : admitted);
  });
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
  NoteNameRemoved(attr);
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

void FileSystem::Impl::RequestUnlessCancelled(const Caller& caller, Done<void> done, SyncRounds::Scope scope) {
  const unsigned seconds_max = options.commit_wait_seconds_max;
  auto answer = UnlessCancelled(
      caller, Clock::Now() + std::chrono::seconds(seconds_max), [this] { return TookTooLong(); }, std::move(done));
  rounds->Request(std::move(answer), scope);
}

SyncRounds::Answer FileSystem::Impl::UnlessKilled(const Caller& caller, Done<void> done) {
  if (!caller.cancelled) {
    return [done = std::move(done)](const Status& status) {
      done(status);
      return true;
    };
  }
  return UnlessCancelled(caller, Clock::time_point::max(), {}, std::move(done));
}

// The wait for a round may end before the round does, which then tells nobody what it waits for.
Error FileSystem::Impl::TookTooLong() const {
  const std::string seconds_max = std::to_string(options.commit_wait_seconds_max);
  const std::string lacking = host != nullptr ? host->WhatIsLacking() : "";
  return MakeError(ErrorCode::kUnavailable, "the data did not become durable in " + seconds_max +
                                                " s (commit_wait_max)" + (lacking.empty() ? "" : ": " + lacking));
}

SyncRounds::Answer FileSystem::Impl::UnlessCancelled(const Caller& caller, Clock::time_point deadline,
                                                     std::function<Error()> late, Done<void> done) {
  auto wait = std::make_shared<Wait>();
  wait->cancelled = caller.cancelled;
  wait->deadline = deadline;
  wait->late = std::move(late);
  wait->done = std::move(done);
  {
    MutexLock lock(waits_mutex);
    waits.push_back(wait);
    if (!waits_watched) waits_wake.NotifyOne();
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
      while (waits.empty() && !waits_stopping) {
        waits_watched = false;
        waits_wake.Wait(waits_mutex);
      }
      if (waits_stopping) return;
      waits_watched = true;
      std::erase_if(waits, [](const auto& wait) {
        MutexLock answer(wait->mutex);
        return wait->answered;
      });
      current = waits;
    }
    auto now = Clock::Now();
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

meta::AttrChanges FileSystem::Impl::ChangesOf(const SetAttrRequest& request, const meta::Attr& before, Timestamp now,
                                              const Caller& caller) {
  meta::AttrChanges changes;
  changes.mode = request.mode;
  changes.uid = request.uid;
  changes.gid = request.gid;
  changes.atime = request.atime_now ? now : request.atime;
  if (!S_ISREG(before.mode)) changes.mtime = request.mtime_now ? now : request.mtime;
  // The kernel never clears these bits of a directory.
  if (request.kill_suid_sgid && !request.mode && !S_ISDIR(before.mode)) {
    const uint32_t kept = WithoutSetId(before, caller);
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
  Timestamp now = Clock::WallTime();
  std::optional<Timestamp> mtime = request.mtime_now ? now : request.mtime;
  const meta::AttrChanges changes = Impl::ChangesOf(request, *before, now, caller);
  if (regular && (request.uid || request.gid || request.size)) {
    InodePtr inode = impl_->table.Hold(id);
    const Status killed = impl_->KillPrivileges(inode, /*kills_set_id=*/false, caller);
    impl_->table.Unhold(inode);
    if (!killed.ok()) return done(killed.error());
  }
  if (changes.mode || changes.uid || changes.gid || changes.atime || changes.mtime) {
    SyncRounds::Operation operation(*impl_->rounds);
    auto changed = impl_->parts.names.SetAttr(id, changes);
    if (!changed.ok()) return done(changed.error());
    if (request.mode) impl_->NoteModeSet(id);
    if (changes.uid) impl_->NoteOwner(id, *changes.uid);
  }
  if (!regular || (!request.size && !mtime)) return done(GetAttr(id));
  InodePtr inode = impl_->table.Hold(id);
  auto change = [this, inode, size = request.size, mtime, now](Content& content) -> Status {
    inode->mutex.AssertHeld();
    if (size) CAIRNFS_RETURN_IF_ERROR(impl_->Truncate(inode, content, *size));
    if (mtime) content.mtime = *mtime;
    content.ctime = now;
    content.publish->NoteTimes();
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
    const Impl::ChangeKind kind{.empties = empties, .removes = cuts, .publishes = true, .session = session};
    return impl_->ChangeShared(inode, change, finish, kind, caller);
  }
  impl_->ChangeWhenQuiet(inode, change, finish, empties);
}

}  // namespace cairnfs::fs
