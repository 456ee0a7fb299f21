// Opening, writing, closing and syncing files.
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

// A close returns before its bytes are published: other hosts read old ones.
Failpoint skip_close_wait("fs.skip_close_wait", Failpoint::Kind::kSkippable);

// The kernel writes back and drops the pages of a write(2) before that returns: after this long, what comes is newer.
constexpr auto kOldPagesWrittenBackIn = std::chrono::seconds(10);
constexpr auto kMarkWaitMax = std::chrono::seconds(2);

}  // namespace

Result<FileSystem::Created> FileSystem::Create(InodeId parent, std::string_view name, const meta::CreateParams& params,
                                               const OpenFlags& flags) {
  // Another host may find the name, and remove it, before this call has returned: then the file is open already.
  InodePtr held;
  auto unhold = [&] {
    if (!held) return;
    {
      MutexLock lock(held->mutex);
      held->open_count--;
    }
    impl_->table.Unhold(held);
  };
  auto hold = [&](InodeId id) {
    unhold();
    held = impl_->table.Hold(id);
    MutexLock lock(held->mutex);
    held->open_count++;
  };
  Created created;
  meta::CreateParams marked = params;
  uint64_t session = 0;
  if (impl_->host != nullptr) {
    if (Status status = impl_->AwaitSession(); !status.ok()) return status.error();
    // Each attempt is of the session that there is then.
    marked.also = [this, &session](kv::Transaction& transaction, InodeId inode) {
      session = impl_->host->session();
      impl_->host->AddSessionCompare(transaction, session);
      impl_->host->AddMark(transaction, inode, session);
    };
  }
  {
    SyncRounds::Operation operation(*impl_->rounds);
    auto attr = impl_->parts.names.Create(parent, name, marked,
                                          impl_->host != nullptr ? std::function<void(InodeId)>(hold) : nullptr);
    if (!attr.ok()) {
      unhold();
      return attr.error();
    }
    created.attr = std::move(*attr);
    impl_->inode_count++;
  }
  // Where the session was lost meanwhile: a descriptor of none could not be written to.
  if (impl_->host != nullptr) static_cast<void>(impl_->AwaitSession().ok());
  InodePtr inode = impl_->table.AddLookup(created.attr.inode);
  {
    MutexLock lock(inode->mutex);
    // Somebody may have found the name, opened the file and written to it before this call got here.
    if (!inode->content) {
      inode->content = impl_->MakeContent(impl_->OwnerOf(created.attr.uid));
      inode->content->mtime = created.attr.mtime;
      inode->content->ctime = created.attr.ctime;
    }
    if (session != 0 && session == impl_->host->session()) inode->content->shared().is_marked = true;
    if (inode->privileges_given == 0) {
      inode->no_capability = true;
      inode->no_set_id = (created.attr.mode & (S_ISUID | S_ISGID)) == 0;
    }
    created.handle = impl_->AddHandle(inode, flags);
  }
  // The mark that came with the name is of a session that was lost meanwhile: the first publish takes it away.
  if (session != 0 && session != impl_->host->session()) {
    static_cast<void>(impl_->Refresh(inode, {}, {.may_wait = true, .writes = true}).ok());
  }
  unhold();
  return created;
}

void FileSystem::Open(InodeId id, const OpenFlags& flags, Done<HandleId> done, const Caller& caller) {
  if (flags.executes) {
    if (Status may = impl_->CheckMayExecute(id, caller); !may.ok()) return done(may.error());
  }
  if (flags.truncate) {
    InodePtr inode = impl_->table.Hold(id);
    const Status killed = impl_->KillPrivileges(inode, /*kills_set_id=*/false, caller);
    impl_->table.Unhold(inode);
    if (!killed.ok()) return done(killed.error());
  }
  if (impl_->host != nullptr) return impl_->OpenShared(id, flags, std::move(done), caller);
  auto attr = impl_->parts.names.GetAttr(id);
  if (!attr.ok()) return done(attr.error());
  if ((attr->mode & S_IFMT) == S_IFDIR) return done(MakeError(ErrorCode::kIsDirectory, "is a directory"));
  InodePtr inode = impl_->table.Hold(id);
  {
    // Open from now on: should its last name go meanwhile, its bytes stay.
    MutexLock lock(inode->mutex);
    inode->open_count++;
  }
  auto finish = [this, inode, flags, done](Status status) {
    Result<HandleId> handle = HandleId{0};
    {
      MutexLock lock(inode->mutex);
      if (status.ok()) {
        handle = impl_->AddHandle(inode, flags);
      } else {
        handle = status.error();
      }
      inode->open_count--;
    }
    impl_->table.Unhold(inode);
    done(std::move(handle));
  };
  if (flags.truncate) {
    auto change = [this, inode](Content& content) -> Status {
      inode->mutex.AssertHeld();
      content.must_publish = true;
      return impl_->Truncate(inode, content, 0);
    };
    return impl_->ChangeWhenQuiet(inode, change, finish, /*empties=*/true);
  }
  Result<bool> loaded = false;
  {
    MutexLock lock(inode->mutex);
    loaded = impl_->LoadContent(inode, false);
  }
  auto fail = [this, inode, finish](const Error& error) {
    spdlog::error("inode {}: cannot be opened: {}", inode->id.value, error.message);
    impl_->error_names->Note(inode->id);
    finish(error);
  };
  if (!loaded.ok()) return fail(loaded.error());
  if (*loaded) return finish({});
  impl_->waiters->Post([this, inode, finish, fail] {
    Result<bool> again = false;
    {
      MutexLock lock(inode->mutex);
      again = impl_->LoadContent(inode, true);
    }
    if (again.ok()) return finish({});
    fail(again.error());
  });
}

void FileSystem::Write(WriteRequest request, Done<size_t> done) {
  HandlePtr handle = request.handle == 0 ? nullptr : impl_->handles.Find(request.handle);
  InodePtr inode = handle ? handle->inode : impl_->table.Find(request.inode);
  if (!inode) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (request.data.size == 0) return done(size_t{0});
  if (request.offset > kFileSizeMax || request.data.size > kFileSizeMax - request.offset) {
    return done(MakeError(ErrorCode::kTooLarge, "write past the largest file size"));
  }
  if (request.append && impl_->host != nullptr) {
    bool is_stream = false;
    {
      MutexLock lock(inode->mutex);
      is_stream = inode->content && inode->content->changed && inode->others_seen == inode->others_noticed;
    }
    // What others have appended comes before it. A stream of appends is of one host: it does not ask each time.
    if (!is_stream) {
      const Caller caller = request.caller;
      return impl_->SeeOthers(inode, caller,
                              [this, request = std::move(request), handle, inode, done](const Status& seen) {
                                if (!seen.ok()) return done(seen.error());
                                impl_->ReserveAndWrite(request, handle, inode, done);
                              });
    }
  }
  impl_->ReserveAndWrite(std::move(request), handle, inode, std::move(done));
}

void FileSystem::Impl::ReserveAndWrite(WriteRequest request, const HandlePtr& handle, const InodePtr& inode,
                                       Done<size_t> done) {
  if (parts.local_chunks.TryReserve(request.data.size)) {
    return FinishWrite(request, handle, inode, std::move(done));
  }
  // Nearly full: the answer waits until it is known how much of what was accepted needs room at all. The bytes move out
  // of the pool meanwhile is not needed: requests that are no writes have buffers of their own.
  space_waiters->Post([this, request = std::move(request), handle, inode, done = std::move(done)] {
    if (const Status reserved = ReserveOrWait(request.data.size); !reserved.ok()) {
      if (request.from_page_cache) LosePages(request, inode, reserved.error());
      return done(reserved.error());
    }
    FinishWrite(request, handle, inode, done);
  });
}

void FileSystem::Impl::GiveUpWrite(const WriteRequest& request, const InodePtr& inode, const Error& why,
                                   const Done<size_t>& done) {
  if (request.from_page_cache) LosePages(request, inode, why);
  parts.local_chunks.ReleaseReservation(request.data.size);
  done(why);
}

void FileSystem::Impl::FinishWrite(const WriteRequest& request, const HandlePtr& handle, const InodePtr& inode,
                                   Done<size_t> done) {
  // Nobody knows who stored into the pages that the kernel writes back.
  const bool kills_set_id = request.kill_suid_sgid || request.from_page_cache;
  if (!MayHavePrivileges(inode, kills_set_id)) return FinishPlainWrite(request, handle, inode, std::move(done));
  auto write = [this, request, handle, inode, kills_set_id, done = std::move(done)] {
    const Status killed = KillPrivileges(inode, kills_set_id, request.caller);
    if (!killed.ok()) return GiveUpWrite(request, inode, killed.error(), done);
    FinishPlainWrite(request, handle, inode, done);
  };
  // What has to be asked of the shared store holds up this write alone.
  if (host == nullptr || !blocking->Post(write)) write();
}

void FileSystem::Impl::FinishPlainWrite(const WriteRequest& request, const HandlePtr& handle, const InodePtr& inode,
                                        Done<size_t> done) {
  const Result<bool> cuts = AcceptWrite(request, handle, inode);
  if (!cuts.ok()) return GiveUpWrite(request, inode, cuts.error(), done);
  write_bytes_total += request.data.size;
  const bool is_synced = request.sync || (handle && handle->flags.sync);
  if (is_synced) NoteAskedFor(inode);
  const bool marks = host != nullptr && request.from_page_cache && MarksPages(inode);
  auto finish = [this, handle, is_synced, size = request.data.size, caller = request.caller, done = std::move(done)] {
    if (!is_synced) return done(size);
    rounds->Request(UnlessKilled(caller, [this, handle, done, size](Status synced) {
      if (!synced.ok() && synced.error().code == ErrorCode::kInterrupted) return done(synced.error());
      if (handle && (synced.ok() || IsDurableHere(handle->inode))) synced = CheckSynced(*handle);
      if (!synced.ok()) return done(synced.error());
      done(size);
    }));
  };
  // The answer goes first where nothing else holds it up: a worker that wakes may take the writer's processor.
  const bool answers_first = !marks && !is_synced;
  if (*cuts && !answers_first) streams->BeginCut(inode);
  if (marks) {
    AnswerOnceMarked(inode, finish);
  } else {
    finish();
  }
  if (*cuts && answers_first) streams->BeginCut(inode);
}

// munmap of a mapping whose descriptor was closed before sends its stores without a word that it ends. They are
// published in the background; until then the file is marked.
bool FileSystem::Impl::MarksPages(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->closed_while_open && inode->content && !inode->content->shared().is_marked;
}

// Not for long: while pages wait for their answer the kernel sends no other background requests of the mount. The bytes
// are kept and will be published, whatever becomes of the mark: no reason to drop the pages.
void FileSystem::Impl::AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer) {
  const auto until = Clock::Now() + kMarkWaitMax;
  auto finish = [this, inode, answer = std::move(answer)](const Status& marked) {
    const kv::Patience::OfThread own_time(nullptr);
    if (!marked.ok()) {
      spdlog::warn("inode {}: other hosts do not know yet of stores through a mapping that may have ended: {}",
                   inode->id.value, marked.error().message);
      error_names->Note(inode->id);
    }
    answer();
  };
  blocking->Post(
      [this, inode, finish] { finish(host->membership().LeaseHolds() ? MarkUnpublished(inode) : Unanswered()); },
      [until] { return Clock::Now() >= until; }, [finish](const Error& why) { finish(why); });
}

Result<bool> FileSystem::Impl::AcceptWrite(const WriteRequest& request, const HandlePtr& handle,
                                           const InodePtr& inode) {
  if (handle) {
    if (host != nullptr && !request.from_page_cache) NoteWriter(*handle, request.caller);
    const Status holds = CheckSession(*handle);
    // The loss that the inode remembers is told with that, and to nobody who opens the file later.
    if (!holds.ok() && !request.from_page_cache) static_cast<void>(TakeErrorLocked(*handle).ok());
    CAIRNFS_RETURN_IF_ERROR(holds);
  }
  std::optional<SyncRounds::Operation> operation;
  for (;;) {
    MutexLock lock(inode->mutex);
    CAIRNFS_ASSIGN_OR_RETURN(bool loaded, LoadContent(inode, true));
    static_cast<void>(loaded);
    if (!inode->content->changed && !operation) {
      lock.Unlock();
      operation.emplace(*rounds);
      continue;
    }
    // The kernel would drop a page whose writeback is refused: an older error is no reason to.
    if (handle && !request.from_page_cache) CAIRNFS_RETURN_IF_ERROR(TakeError(inode, *handle));
    Content& content = *inode->content;
    // Once more, for that may have been lost since: a loss from here on finds the content changed, and gives it up.
    if (handle) CAIRNFS_RETURN_IF_ERROR(CheckSession(*handle));
    MarkChanged(inode);
    // Stores through a mapping count from msync, munmap or close on, which come here as such writes: no names after
    // them may be durable before, though somebody still has the file open.
    if (request.from_page_cache) {
      content.must_publish = true;
      content.publish->NotePages();
    } else {
      content.writer = request.caller.uid;
    }
    uint64_t offset = request.offset;
    if (request.append && host != nullptr) offset = PlaceAppend(inode, request);
    if (request.data.size > kFileSizeMax - offset) {
      return MakeError(ErrorCode::kTooLarge, "write past the largest file size");
    }
    content.size = std::max(content.size, offset + request.data.size);
    content.publish->NoteSizeMin(offset + request.data.size);
    Touch(content);
    if (request.from_page_cache) {
      return AcceptPages(inode, request.offset, request.data);
    }
    NoteUnderPages(inode, offset, offset + request.data.size);
    return streams->Accept(inode, offset, request.data);
  }
}

// The kernel appends at the size that it believes in, which other hosts' appends, and where those had this host's go,
// leave behind: an append goes to the end. Only pieces of one large direct write may come out of order, and lie where
// they say; the kernel sends all others one after the other.
uint64_t FileSystem::Impl::PlaceAppend(const InodePtr& inode, const WriteRequest& request) {
  const uint64_t end = inode->content->size;
  if (!request.direct) return end;
  const uint64_t offset = request.offset, offset_end = offset + request.data.size;
  if (offset > end) {
    if (offset <= inode->others_cut_from) {
      inode->others_cut_from = std::max(inode->others_cut_from, offset_end);  // it goes on from there
      return end;
    }
    inode->late_appends.Add(end, offset);
    return offset;
  }
  bool is_late_piece = offset < end;
  inode->late_appends.ForEachGap(offset, offset_end, [&](uint64_t, uint64_t) { is_late_piece = false; });
  if (!is_late_piece) return end;
  inode->late_appends.Remove(offset, offset_end);
  return offset;
}

// Pages that the kernel wrote back are refused. It drops them, and tells at most one descriptor: nobody but us
// remembers.
void FileSystem::Impl::LosePages(const WriteRequest& request, const InodePtr& inode, const Error& why) {
  SyncRounds::Operation operation(*rounds);
  spdlog::error("inode {}: stores through a mapping at {} (+{}) are lost: {}", inode->id.value, request.offset,
                request.data.size, why.message);
  MutexLock lock(inode->mutex);
  // With the host's session went all that was not published.
  const bool counts = host == nullptr || why.code == ErrorCode::kNoSpace;
  if (!counts || !LoadContent(inode, true).ok()) return streams->SetError(inode, why);
  MarkChanged(inode);
  inode->content->must_publish = true;
  const uint64_t end = std::max(request.offset, std::min(request.offset + request.data.size, inode->content->size));
  streams->SetError(inode, why);
  ForgetOldWrites(inode);
  inode->written_under_pages.ForEachGap(request.offset, end, [&](uint64_t first, uint64_t last) {
    inode->mutex.AssertHeld();
    streams->Lose(inode, first, last - first);
  });
}

// What the kernel wrote back from now on in [begin, end) is older than a change of those bytes, until it reads them.
void FileSystem::Impl::NoteUnderPages(const InodePtr& inode, uint64_t begin, uint64_t end) {
  if (!inode->mapped || begin >= end) return;
  inode->written_under_pages.Add(begin, end);
  inode->written_under_pages_at = Clock::Now();
}

// Pages that are written back so long after write(2) hold what was stored after it.
void FileSystem::Impl::ForgetOldWrites(const InodePtr& inode) {
  if (Clock::Now() - inode->written_under_pages_at > kOldPagesWrittenBackIn) {
    inode->written_under_pages.Clear();
  }
}

// Pages that the kernel writes back. It filled some of them before a write(2) that came since (docs/decisions/
// mappings.md): what they have where that wrote is not newer, and is left out.
bool FileSystem::Impl::AcceptPages(const InodePtr& inode, uint64_t offset, const io::Slice& data) {
  ForgetOldWrites(inode);
  uint64_t taken = 0;
  bool cuts = false;
  inode->written_under_pages.ForEachGap(offset, offset + data.size, [&](uint64_t begin, uint64_t end) {
    inode->mutex.AssertHeld();
    io::Slice piece = data;
    piece.data += begin - offset;
    piece.size = end - begin;
    taken += piece.size;
    if (streams->Accept(inode, begin, piece)) cuts = true;
  });
  parts.local_chunks.ReleaseReservation(data.size - taken);
  return cuts;
}

void FileSystem::Flush(HandleId handle_id, InodeId, Done<void> done, const Caller& caller) {
  using Closer = Impl::Closer;
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return done({});
  const InodePtr& inode = handle->inode;
  const bool is_alone = impl_->host == nullptr;
  const Closer closer = is_alone ? Closer::kWriter : impl_->JudgeCloser(*handle, caller);
  Status status;
  {
    MutexLock lock(inode->mutex);
    status = impl_->TakeError(inode, *handle);
    Content* content = inode->content.get();
    if (handle->flags.write && content != nullptr && content->changed && closer != Closer::kOther) {
      content->must_publish = true;
      content->publish->NoteClosed();
      if (content->barriers_waiting == 0) impl_->streams->CutClosed(inode);
    }
    if (status.ok() && handle->flags.write) status = impl_->CheckDisk(inode);
    if (handle->flags.write) inode->closed_while_open = true;
  }
  if (status.ok() && !is_alone) status = impl_->CheckSession(*handle);
  if (!status.ok() || is_alone || !handle->flags.write || closer != Closer::kWriter) return done(status);
  if (skip_close_wait.PassOrSkip()) return done(status);
  auto answer = [this, handle, done = std::move(done)](const Status& round) {
    const Status outcome = impl_->CheckOutcome(handle->inode, handle->session, round);
    if (!outcome.ok()) static_cast<void>(Impl::TakeErrorLocked(*handle).ok());  // it is told now
    done(outcome);
  };
  impl_->rounds->Request(impl_->UnlessKilled(caller, std::move(answer)), SyncRounds::Scope::kClosed);
}

Status FileSystem::Impl::CheckDisk(const InodePtr& inode) {
  if (!inode->content) return {};
  const auto failure = rounds->DiskFailure();
  Content& content = *inode->content;
  if (!failure || (!content.changed && content.flushed_with <= rounds->rounds_total())) return {};
  if (!std::exchange(content.failure_noted, true)) {
    spdlog::error("inode {}: what was written to it is not durable: {}", inode->id.value, failure->message);
    error_names->Note(inode->id);
  }
  return *failure;
}

void FileSystem::Release(HandleId handle_id, InodeId) {
  HandlePtr handle = impl_->handles.Take(handle_id);
  if (!handle) return;
  const InodePtr& inode = handle->inode;
  {
    MutexLock lock(inode->mutex);
    inode->open_count--;
    if (handle->flags.write) inode->write_open_count--;
    if (inode->write_open_count == 0) inode->closed_while_open = false;
    if (inode->content) {
      // Nothing was written since it was made or truncated, or all of that is published: a round in the background
      // takes the mark away.
      SharedContent* shared = impl_->host != nullptr ? &inode->content->shared() : nullptr;
      const bool is_settled = inode->write_open_count == 0 || !inode->content->changed;
      if (handle->flags.write && shared != nullptr && shared->is_marked && is_settled && !shared->is_void) {
        shared->is_asked_for = true;
        impl_->MarkChanged(inode);
      }
      if (inode->content->changed) inode->content->must_publish = true;
      if (inode->write_open_count == 0) {
        if (inode->content->barriers_waiting == 0) impl_->streams->CutClosed(inode);
        impl_->streams->DropStoredRuns(inode);
      }
      impl_->DropContentIfUnused(inode);
    }
  }
  impl_->open_files--;
  impl_->table.Unhold(inode);
}

void FileSystem::Fsync(HandleId handle_id, InodeId inode, bool, Done<void> done, const Caller& caller) {
  // Handles of directories are numbered apart from those of files.
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (handle && handle->inode->id != inode) handle = nullptr;
  Status status = handle ? Impl::TakeErrorLocked(*handle) : Status();
  if (status.ok() && handle) status = impl_->CheckSession(*handle);
  if (!status.ok()) return done(status);
  if (handle) impl_->NoteAskedFor(handle->inode);
  auto finish = [this, handle, done = std::move(done)](Status synced) {
    if (!synced.ok() && synced.error().code == ErrorCode::kInterrupted) return done(synced);
    // What failed while the round ran is told too.
    if (handle && (synced.ok() || impl_->IsDurableHere(handle->inode))) synced = impl_->CheckSynced(*handle);
    done(synced);
  };
  SyncRounds::Answer answer = impl_->UnlessKilled(caller, std::move(finish));
  if (caller.lends_thread) return impl_->rounds->RequestHere(std::move(answer));
  impl_->rounds->Request(std::move(answer));
}

}  // namespace cairnfs::fs
