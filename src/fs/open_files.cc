#include "fs/open_files.h"

#include <sys/stat.h>

#include <utility>

#include "base/log.h"

namespace cairnfs::fs {

class OpenFiles::Held {
 public:
  explicit Held(InodeTable& table) : table_(table) {}
  ~Held() { Release(); }
  Held(const Held&) = delete;
  void Take(InodeId id) {
    Release();
    inode_ = table_.Hold(id);
    MutexLock lock(inode_->mutex);
    inode_->open_count++;
  }
  void Release() {
    if (!inode_) return;
    {
      MutexLock lock(inode_->mutex);
      inode_->open_count--;
    }
    table_.Unhold(std::exchange(inode_, nullptr));
  }
  const InodePtr& inode() const { return inode_; }

 private:
  InodeTable& table_;
  InodePtr inode_;
};

namespace {

Error SentBeside() {
  return MakeError(ErrorCode::kStale, "the kernel serves opens of the file itself: this one goes by another node id");
}

OpenModes::Asked AskedOf(const OpenFlags& flags, uint32_t thread) {
  return {.may_pass = flags.may_pass,
          .only_reads = flags.read && !flags.write && !flags.truncate && !flags.executes && !flags.from_disk,
          .is_beside = flags.is_beside,
          .thread = thread};
}

// What `done` waited for counts as time that a save waited.
Done<void> Timed(const HandlePtr& handle, Done<void> done) {
  if (handle->tally == nullptr) return done;
  return [tally = handle->tally, begun = Clock::Now(), done = std::move(done)](const Status& status) {
    tally->NoteWait(Clock::Now() - begun);
    done(status);
  };
}

}  // namespace

bool OpenFiles::NamesBeside(InodeId id, uint32_t thread) {
  if (!at_.backing_files.is_begun()) return false;
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return inode->modes.NamesBeside(inode->backing.get(), thread);
}

bool OpenFiles::MayHaveTwoIds(InodeId id) {
  if (!at_.backing_files.is_begun()) return false;
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return inode->backing != nullptr || inode->modes.has_sent();
}

bool OpenFiles::MayPass(InodeId id, const Caller& caller) {
  if (!at_.backing_files.is_begun()) return false;
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  {
    // Most files are not in memory, and not about to be.
    MutexLock lock(inode->mutex);
    if (!inode->backing && !inode->is_read_through) return false;
  }
  meta::Namespace& names = at_.parts.names;
  const auto attr = names.GetAttr(caller.context, id);
  // Whether somebody writes to a program that runs, the kernel knows by node id.
  constexpr uint32_t kExecutable = S_IXUSR | S_IXGRP | S_IXOTH, kWritable = S_IWUSR | S_IWGRP | S_IWOTH;
  if (!attr.ok() || (attr->mode & kExecutable) != 0) return false;
  if (caller.uid == 0 || caller.uid == attr->uid || (attr->mode & kWritable) == 0) return true;
  return names.KnowsSealsOf(caller.context, id) && !names.CheckUnsealed(caller.context, id).ok();
}

BackingId OpenFiles::BackingOf(HandleId handle_id) {
  if (!at_.backing_files.is_begun()) return 0;
  const HandlePtr handle = at_.handles.Find(handle_id);
  return handle ? handle->backing : 0;
}

bool OpenFiles::IsSent(InodeId id, const OpenFlags& flags, uint32_t thread) {
  if (!at_.backing_files.is_begun()) return false;
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return !inode->modes.Decide(AskedOf(flags, thread), inode->backing.get());
}

bool OpenFiles::MustGoBeside(InodeId id, uint32_t thread) { return IsSent(id, {}, thread); }

bool OpenFiles::MustCutElsewhere(InodeId id, bool is_beside) {
  if (!at_.backing_files.is_begun()) return false;
  const InodePtr inode = at_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return inode->modes.MustCutElsewhere(is_beside);
}

Result<HandleId> OpenFiles::AddHandle(const InodePtr& inode, const OpenFlags& flags, const Caller& opener) {
  const auto mode = inode->modes.Decide(AskedOf(flags, opener.pid), inode->backing.get());
  if (!mode) return SentBeside();
  auto handle = std::make_shared<Handle>();
  handle->inode = inode;
  handle->flags = flags;
  handle->mode = *mode;
  inode->modes.NoteOpened(*mode, opener.pid);
  if (*mode == OpenMode::kPassed) handle->backing = at_.backing_files.NoteOpened(inode);
  at_.session.Stamp(*handle);
  {
    MutexLock lock(handle->mutex);
    handle->error_seen = inode->error.SeenAtOpen(flags.write);
  }
  inode->open_count++;
  if (flags.write) {
    inode->write_open_count++;
    inode->write_opens++;
    inode->opened_for_update |= flags.read;
    inode->refused_execs.clear();
    handle->tally = at_.saves.Of(InodeId{inode->directory}, opener.uid);
  }
  at_.table.Hold(inode->id);
  count_++;
  return at_.handles.Add(std::move(handle));
}

Result<FileSystem::Created> OpenFiles::Create(const Context& context, InodeId parent, std::string_view name,
                                              const meta::CreateParams& params, const OpenFlags& flags) {
  CAIRNFS_RETURN_IF_ERROR(at_.session.Await(context));
  // Another host may find the name, and remove it, before this call has returned: then the file is open already.
  Held held(at_.table);
  FileSystem::Created created;
  meta::CreateParams marked = params;
  uint64_t session = 0;
  marked.also = at_.sharing.MarkCreated(session);
  marked.may_fall_under = [this](InodeId quota) { return at_.quotas.CheckMayCreate(quota); };
  std::function<void(InodeId)> hold;
  if (marked.also) {
    hold = [&](InodeId id) {
      held.Take(id);
      held.inode()->made_without_name = params.without_name;
    };
  }
  CAIRNFS_ASSIGN_OR_RETURN(created.attr, at_.room.OnceThereIsRoom([&] {
    SyncRounds::Operation operation(at_.rounds);
    auto made = at_.parts.names.Create(context, parent, name, marked, hold);
    if (made.ok()) at_.totals.NoteMade();
    return made;
  }));
  // Where the session was lost meanwhile: a descriptor of none could not be written to.
  static_cast<void>(at_.session.Await(context).ok());
  // From here on the file counts as written, or the seal is found.
  const auto writing = at_.seals.BeginChange(context, created.attr.inode, parent);
  InodePtr inode = at_.table.AddLookup(created.attr.inode);
  inode->directory = parent.value;
  inode->made_without_name = params.without_name;
  Result<HandleId> handle = HandleId{0};
  {
    MutexLock lock(inode->mutex);
    // Somebody may have found the name, opened the file and written to it before this call got here.
    if (!inode->content) {
      inode->content = at_.records.MakeContent(OwnerOf(at_.parts, created.attr.uid));
      inode->content->mtime = created.attr.mtime;
      inode->content->ctime = created.attr.ctime;
      inode->content->quota = created.attr.quota;
    }
    at_.sharing.NoteCreated(inode, session);
    const bool has_set_id = (created.attr.mode & (S_ISUID | S_ISGID)) != 0;
    if (!has_set_id) inode->NoteJudged(created.attr.inode_revision);
    if (inode->privileges_given == 0) {
      inode->no_capability = true;
      inode->no_set_id = !has_set_id;
    }
    Caller opener;
    opener.uid = params.uid;
    handle = AddHandle(inode, flags, opener);
  }
  at_.sharing.EndCreate(context, inode, session);
  if (!handle.ok()) {
    at_.table.Forget(inode->id, 1);
    return handle.error();
  }
  created.handle = *handle;
  // Its transaction found the directory below no seal.
  const bool is_current = writing.ok() && at_.seals.IsCurrent(*writing);
  if (is_current || !flags.write) return created;
  Release(created.handle);
  at_.table.Forget(inode->id, 1);
  return writing.ok() ? SessionWasLost() : writing.error();
}

void OpenFiles::AwaitMayCreate(InodeId directory, const Caller& caller, Done<void> done) {
  const auto attr = at_.parts.names.GetAttr(caller.context, directory);
  if (!attr.ok()) return done(attr.error());
  at_.quotas.AwaitMayCreate(caller.context, attr->quota, std::move(done));
}

Error OpenFiles::SessionWasLost() {
  return MakeError(ErrorCode::kStale, "this host lost its session with the cluster while the file was opened");
}

void OpenFiles::Open(InodeId id, const OpenFlags& asked, Done<HandleId> done, const Caller& caller) {
  OpenFlags flags = asked;
  flags.may_pass = asked.may_pass && MayPass(id, caller);
  // Before it has changed anything; AddHandle looks again.
  const bool is_sent = IsSent(id, flags, caller.pid);
  // Here, so that the kernel asks for both at once: for the mode, and for the node id.
  if (flags.executes) {
    if (Status may = at_.privileges.CheckMayExecute(id, caller); !may.ok()) return done(may.error());
  }
  if (is_sent) return done(SentBeside());
  if (!flags.write && !flags.truncate) return OpenUnsealed(id, flags, std::move(done), caller);
  OnceSealsAreKnown(at_, id, caller, [this, id, flags, done = std::move(done), caller](Status may) {
    if (may.ok()) may = at_.parts.names.CheckUnsealed(caller.context, id);
    if (!may.ok()) return done(may.error());
    OpenUnsealed(id, flags, done, caller);
  });
}

Result<HandleId> OpenFiles::FinishOpen(const InodePtr& inode, const OpenFlags& flags, const Others& others,
                                       const Caller& caller, Status status) {
  // The open may have waited for long.
  Seals::Change writing;
  if (status.ok() && flags.write) {
    if (auto begun = at_.seals.BeginChange(caller.context, inode->id); begun.ok()) {
      writing = *std::move(begun);
    } else {
      status = begun.error();
    }
  }
  Result<HandleId> handle = HandleId{0};
  {
    MutexLock lock(inode->mutex);
    handle = status.ok() ? AddHandle(inode, flags, caller) : Result<HandleId>(status.error());
    if (!handle.ok()) {
      status = handle.error();
      if (flags.truncate) NoteTruncationFailed(inode, others, status.error());
    }
  }
  if (handle.ok() && flags.write && !at_.seals.IsCurrent(writing)) {
    Release(*handle);
    handle = SessionWasLost();
  }
  if (handle.ok() && AskedOf(flags, 0).only_reads) at_.fills_ahead.NoteRead(InodeId{inode->directory});
  // For those who come after: this open is not to wait.
  if (handle.ok() && flags.may_pass && BackingOf(*handle) == 0) at_.backing_files.FillSoon(inode->id, caller.uid);
  return handle;
}

void OpenFiles::OpenUnsealed(InodeId id, const OpenFlags& flags, Done<HandleId> done, const Caller& caller) {
  Seals::Change emptying;
  if (flags.truncate) {
    auto begun = at_.seals.BeginChange(caller.context, id);
    if (!begun.ok()) return done(begun.error());
    emptying = *std::move(begun);
  }
  const Kills kills = flags.kills_set_id ? Kills::kSetIdToo : Kills::kCapability;
  if (flags.truncate) {
    if (Status killed = at_.privileges.Kill(id, kills, caller); !killed.ok()) return done(killed.error());
  }
  auto held = std::make_shared<Held>(at_.table);
  held->Take(id);
  const InodePtr inode = held->inode();
  Others others;
  {
    MutexLock lock(inode->mutex);
    others = OthersOf(inode);
  }
  auto finish = [this, inode, held, flags, others, emptying, caller, done = std::move(done)](const Status& status) {
    auto handle = FinishOpen(inode, flags, others, caller, status);
    held->Release();
    if (!handle.ok()) {
      MutexLock lock(inode->mutex);
      at_.contents.DropIfUnused(inode);
    }
    done(std::move(handle));
  };
  if (Status may = at_.sharing.MayOpen(caller.context, id); !may.ok()) return finish(may);
  if (flags.truncate) {
    FileChange change{.inode = inode,
                      .apply =
                          [this, inode](Content& content) {
                            inode->mutex.AssertHeld();
                            content.must_publish = true;
                            content.publish->NoteEmptiedByOpen();
                            return at_.contents.Truncate(inode, 0);
                          },
                      .empties = true,
                      .removes = true,
                      .publishes = true,
                      .session = emptying.session,
                      .kills = kills,
                      .caller = caller};
    return at_.sharing.Change(std::move(change), std::move(finish));
  }
  auto tell = [this, id, finish = std::move(finish)](const Status& status) {
    const ErrorCode code = status.ok() ? ErrorCode{} : status.error().code;
    const bool is_no_fault =
        code == ErrorCode::kNotFound || code == ErrorCode::kIsDirectory || code == ErrorCode::kInterrupted;
    if (!status.ok() && !is_no_fault) {
      spdlog::error("inode {}: cannot be opened: {}", id.value, status.error().message);
      at_.error_names.Note(id);
    }
    finish(status);
  };
  at_.sharing.LoadForOpen(inode, flags, caller, std::move(tell));
}

OpenFiles::Others OpenFiles::OthersOf(const InodePtr& inode) {
  Others others{inode->write_open_count > 0, inode->write_opens, inode->error.SeenAtOpen(false)};
  others.may_lose |= inode->error.SeenAtOpen(true) != others.errors;
  if (const Content* content = inode->content.get()) {
    others.may_lose |= !content->lost.empty();
    others.may_lose |= content->publish->is_shared()
                           ? HasUnpublishedBytes(*content) || !content->shared().publishing.ranges.empty()
                           : content->changed;
  }
  return others;
}

// What the file has lost since the open began is told by its failure, unless the caller was killed: whoever opens the
// file next has a clean one. Where it may be what somebody else wrote, it is told to him, or to whoever opens it next.
void OpenFiles::NoteTruncationFailed(const InodePtr& inode, const Others& others, const Error& why) {
  const bool is_its_own = !others.may_lose && inode->write_opens == others.write_opens;
  uint64_t seen = others.errors;
  if (is_its_own && why.code != ErrorCode::kInterrupted) static_cast<void>(inode->error.Take(seen).ok());
  at_.sharing.NoteTruncationFailed(inode);
}

void OpenFiles::Flush(const Closing::Descriptor& closed, Done<void> done, const Caller& caller) {
  HandlePtr handle = at_.handles.Find(closed.handle);
  if (!handle) return done({});
  at_.closing.Close(handle, closed, caller, Timed(handle, std::move(done)));
}

void OpenFiles::Release(HandleId handle_id) {
  HandlePtr handle = at_.handles.Take(handle_id);
  if (!handle) return;
  // First: whoever asks for a lock from now on finds it given up.
  at_.closing.FreeLocks(handle, handle_id);
  const InodePtr& inode = handle->inode;
  {
    MutexLock lock(inode->mutex);
    inode->open_count--;
    inode->modes.NoteReleased(handle->mode);
    if (handle->mode == OpenMode::kPassed) at_.backing_files.NoteReleased(inode);
    if (handle->flags.write) inode->write_open_count--;
    if (inode->write_open_count == 0) inode->closed_while_open = false;
    if (inode->content) {
      at_.closing.NoteReleased(inode, handle->flags);
      if (inode->content->changed) inode->content->must_publish = true;
      if (inode->write_open_count == 0) {
        if (inode->content->barriers_waiting == 0) at_.streams.CutClosed(inode);
        at_.streams.DropStoredRuns(inode);
      }
      at_.contents.DropIfUnused(inode);
    }
  }
  count_--;
  at_.table.Unhold(inode);
}

void OpenFiles::Fsync(HandleId handle_id, InodeId inode, Done<void> done, const Caller& caller) {
  // Handles of directories are numbered apart from those of files.
  HandlePtr handle = at_.handles.Find(handle_id);
  if (handle && handle->inode->id != inode) handle = nullptr;
  if (handle) {
    Status status = TakeErrorLocked(*handle);
    if (status.ok()) status = at_.session.Check(*handle);
    if (!status.ok()) return done(status);
    MutexLock lock(handle->inode->mutex);
    if (handle->inode->content) handle->inode->content->publish->NoteAskedFor();
  }
  if (handle) done = Timed(handle, std::move(done));
  auto finish = [this, handle, done = std::move(done)](Status synced) {
    if (!synced.ok() && synced.error().code == ErrorCode::kInterrupted) return done(synced);
    // What failed while the round ran is told too.
    if (handle && (synced.ok() || at_.closing.IsDurableHere(handle->inode))) synced = CheckSynced(at_.session, *handle);
    done(synced);
  };
  SyncRounds::Answer answer = at_.waits.Within(caller.context, std::move(finish));
  if (caller.lends_thread) return at_.rounds.RequestHere(std::move(answer));
  at_.rounds.Request(std::move(answer));
}

Status CheckSynced(const HostSession& session, Handle& handle) {
  CAIRNFS_RETURN_IF_ERROR(TakeErrorLocked(handle));
  CAIRNFS_RETURN_IF_ERROR(session.Check(handle));
  MutexLock lock(handle.inode->mutex);
  const Content* content = handle.inode->content.get();
  if (content == nullptr || !content->changed || !content->publish_error) return {};
  return *content->publish_error;
}

}  // namespace cairnfs::fs
