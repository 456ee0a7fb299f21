// Files among other hosts: close-to-open. What was closed or synced elsewhere is there when a file is opened here; what
// is closed here everybody can know of at once (a pending record), and it is published by the next round.
#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

// A host that is up and does not publish what it closed: whoever opens the file gets an error after this long.
constexpr auto kFinishWait = std::chrono::seconds(60);
constexpr auto kFinishWaitMin = std::chrono::seconds(1);  // of who comes to its turn late: long enough to ask once
// Somebody who closes a file again and again need not keep readers from what was published meanwhile.
constexpr int kFinishTriesMax = 8;
constexpr int kAnswersMax = 8;  // so many publishes of this host's in a row are waited for
constexpr auto kCancelledLook = std::chrono::milliseconds(100);
// An open file that is read is compared with the store so often, more seldom while nothing changes; and no more than so
// many files at once.
constexpr auto kLookAfterMin = std::chrono::milliseconds(100);
constexpr auto kLookAfterMax = std::chrono::milliseconds(2000);
constexpr unsigned kLooksMax = 4;
constexpr unsigned kAsksMax = 4;  // so many looks at once have other hosts asked to publish what the file lacks

void PostOn(BlockingCalls& calls, const Caller& caller, std::function<void()> task, Done<void> refused) {
  if (!caller.killed) {
    if (!calls.Post(std::move(task))) refused(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping"));
    return;
  }
  calls.Post(std::move(task), caller.killed, [refused = std::move(refused)](const Error& why) { refused(why); });
}

}  // namespace

std::unique_ptr<Content> FileSystem::Impl::MakeContent(chunking::Owner owner) const {
  auto content = std::make_unique<Content>(parts.chunk_params);
  content->owner = owner;
  if (host == nullptr) return content;
  content->shared = std::make_unique<SharedContent>();
  return content;
}

bool FileSystem::Impl::IsRefused(InodeId id) {
  if (!orphans->Refuses(id)) return false;
  // It has a name where the store went back to a state before it was deleted.
  const auto attr = parts.names.GetAttr(id);
  if (!attr.ok() || attr->nlink == 0) return true;
  orphans->Allow(id);
  return false;
}

void FileSystem::Impl::PostFor(const Caller& caller, std::function<void()> task, Done<void> refused) {
  PostOn(*blocking, caller, std::move(task), std::move(refused));
}

void FileSystem::Impl::PostToWait(const Caller& caller, std::function<void()> task, Done<void> refused) {
  if (host == nullptr) return waiters->Post(std::move(task));
  PostOn(*round_waits, caller, std::move(task), std::move(refused));
}

void FileSystem::Impl::AfterClosed(const Caller& caller, Done<void> then) {
  auto post = [this, caller, then = Done<void>(UnlessKilled(caller, std::move(then)))](const Status& status) {
    PostFor(
        caller, [then, status] { then(status); }, then);
  };
  rounds->Request(std::move(post), SyncRounds::Scope::kClosed);
}

ClusterHost::Work FileSystem::Impl::UnfinishedElsewhere(InodeId id, const meta::FileState& state, bool tells) {
  ClusterHost::Work work;
  for (const meta::Pending& pending : state.pending) {
    if (host->IsOwn(pending)) continue;
    if (host->Lives(pending)) {
      work[pending.node].Add(id, pending);
    } else if (tells && host->HasLost(pending)) {
      spdlog::warn("inode {}: host {} was lost with bytes that it had closed; the file is as it was before", id.value,
                   host->NameOf(pending.node));
    }
  }
  return work;
}

Result<meta::FileState> FileSystem::Impl::ReadFinished(InodeId id, const Caller& caller,
                                                       std::optional<Deadline> deadline) {
  const auto now = std::chrono::steady_clock::now();
  const ClusterHost::FinishOptions finish{std::max(deadline.value_or(now + kFinishWait), now + kFinishWaitMin),
                                          caller.cancelled};
  for (int tries = 1;; tries++) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::FileState state, parts.names.ReadFile(id));
    const ClusterHost::Work work = UnfinishedElsewhere(id, state, /*tells=*/tries == 1);
    if (work.empty() || tries == kFinishTriesMax) return state;
    const auto failures = host->Finish(work, finish);
    if (IsForsaken(caller)) return Forsaken();
    for (const ClusterHost::Failure& failure : failures) {
      if (failure.is_gone) continue;
      if (std::chrono::steady_clock::now() >= finish.deadline) {
        return MakeError(ErrorCode::kUnavailable, failure.what.why);
      }
      // It answers, and cannot: what was published is there.
      spdlog::warn("inode {}: {}; the file is as it was published last", id.value, failure.what.why);
      return parts.names.ReadFile(id);
    }
  }
}

// In place: whoever works on the content meanwhile finds it changed, not gone.
Status FileSystem::Impl::LoadShared(const InodePtr& inode, const meta::FileState& state) {
  const chunking::Owner owner = OwnerOf(state.inode.uid);
  auto fresh = MakeContent(owner);
  CAIRNFS_RETURN_IF_ERROR(Rebase(*fresh, state.record, state.record_revision, parts.chunks));
  if (!state.record) {
    fresh->mtime = state.inode.mtime;
    fresh->ctime = state.inode.ctime;
  }
  if (!inode->content) inode->content = MakeContent(owner);
  Content& content = *inode->content;
  content.owner = owner;
  streams->RemoveRange(inode, 0, kFileSizeMax);  // bytes that are stored, kept for a stream that goes on
  content.extents = std::move(fresh->extents);
  NoteEnd(inode, content.size, fresh->size);
  content.size = fresh->size;
  content.published_size = fresh->published_size;
  content.mtime = fresh->mtime;
  content.ctime = fresh->ctime;
  *content.shared = std::move(*fresh->shared);
  host->NotePending(state, *content.shared);
  if (state.has_capability) inode->no_capability = false;
  if ((state.inode.mode & (S_ISUID | S_ISGID)) != 0) inode->no_set_id = false;
  return {};
}

void FileSystem::Impl::NoteEnd(const InodePtr& inode, uint64_t before, uint64_t now) {
  const uint64_t believed = std::max(before, inode->others_cut_from);
  inode->others_cut_from = believed > now ? believed : 0;
  inode->late_appends.Clear();
}

Status FileSystem::Impl::Adopt(const InodePtr& inode, const meta::FileState& state) {
  if (!inode->content || inode->content->must_reload()) return LoadShared(inode, state);
  if (state.has_capability) inode->no_capability = false;
  if ((state.inode.mode & (S_ISUID | S_ISGID)) != 0) inode->no_set_id = false;
  Content& content = *inode->content;
  content.owner = OwnerOf(state.inode.uid);
  host->NotePending(state, *content.shared);
  if (state.record_revision > content.shared->base_revision) {
    if (!content.changed && content.idle()) return LoadShared(inode, state);
    const uint64_t size_before = content.size;
    CAIRNFS_RETURN_IF_ERROR(Rebase(content, state.record, state.record_revision, parts.chunks));
    NoteEnd(inode, size_before, content.size);
    streams->DropStoredFronts(inode);
  }
  return {};
}

bool FileSystem::Impl::AwaitsAnswer(const InodePtr& inode, const meta::FileState& state) const {
  if (!inode->content || inode->content->must_reload()) return false;
  const SharedContent& shared = *inode->content->shared;
  return shared.is_sent && state.record_revision > shared.base_revision;
}

Result<meta::FileState> FileSystem::Impl::AfterAnswer(const InodePtr& inode, const Caller& caller,
                                                      Result<meta::FileState> state) {
  for (int tries = 0; state.ok() && tries < kAnswersMax; tries++) {
    {
      MutexLock lock(inode->mutex);
      if (!AwaitsAnswer(inode, *state)) break;
      while (AwaitsAnswer(inode, *state)) {
        if (IsForsaken(caller)) return Forsaken();
        if (GivesUpOn(*inode->content)) return Unanswered();
        inode->changed_state.WaitFor(inode->mutex, kCancelledLook);
      }
    }
    state = parts.names.ReadFile(inode->id);
  }
  return state;
}

bool FileSystem::Impl::MustAwaitOthers(const InodePtr& inode, const meta::FileState& state) {
  if (!UnfinishedElsewhere(inode->id, state, /*tells=*/true).empty()) return true;
  MutexLock lock(inode->mutex);
  return AwaitsAnswer(inode, state);
}

Result<bool> FileSystem::Impl::Refresh(const InodePtr& inode, const Caller& caller, bool may_wait) {
  CAIRNFS_ASSIGN_OR_RETURN(
      const meta::FileState state,
      may_wait ? AfterAnswer(inode, caller, ReadFinished(inode->id, caller)) : parts.names.ReadFile(inode->id));
  if (!may_wait && MustAwaitOthers(inode, state)) return false;
  MutexLock lock(inode->mutex);
  CAIRNFS_RETURN_IF_ERROR(Adopt(inode, state));
  return true;
}

void FileSystem::Impl::LayPending(meta::Attr& attr) {
  for (const meta::Pending& pending : attr.pending) {
    if (host->IsOwn(pending) || !host->Lives(pending)) continue;
    attr.size = std::max(attr.size, pending.record.size);
    attr.mtime = pending.record.times_are_set ? pending.record.mtime : std::max(attr.mtime, pending.record.mtime);
    attr.ctime = std::max(attr.ctime, pending.record.ctime);
  }
}

bool FileSystem::Impl::OverlayShared(meta::Attr& attr) {
  InodePtr inode = table.Find(attr.inode);
  if (!inode) return true;
  MutexLock lock(inode->mutex);
  if (attr.content_revision < inode->published_revision) return false;
  // Who has seen the size or time of what another host did reads its bytes.
  if (IsBehind(inode, attr.content_revision, attr.pending)) inode->others_noticed++;
  if (!inode->content || inode->content->must_reload()) return true;
  // What is clean says nothing that the store does not say, which may be newer.
  if (!inode->content->changed) return true;
  const Content& content = *inode->content;
  const SharedContent& shared = *content.shared;
  if (shared.SizeIsSet()) {
    attr.size = content.size;
  } else {
    attr.size =
        std::max({attr.size, shared.SizeMin(), attr.content_revision == shared.base_revision ? content.size : 0});
  }
  attr.mtime = shared.TimesAreSet() ? content.mtime : std::max(attr.mtime, content.mtime);
  attr.ctime = std::max(attr.ctime, content.ctime);
  attr.allocated_bytes = content.AllocatedBytes();
  return true;
}

void FileSystem::Impl::OpenShared(InodeId id, const OpenFlags& flags, Done<HandleId> done, const Caller& caller) {
  InodePtr inode = table.Hold(id);
  {
    // Open from now on: should its last name go meanwhile, its bytes stay.
    MutexLock lock(inode->mutex);
    inode->open_count++;
  }
  auto finish = [this, inode, flags, done = std::move(done)](const Status& status) {
    Result<HandleId> handle = HandleId{0};
    {
      MutexLock lock(inode->mutex);
      if (status.ok()) {
        handle = AddHandle(inode, flags);
      } else {
        handle = status.error();
      }
      inode->open_count--;
      DropContentIfUnused(inode);
    }
    table.Unhold(inode);
    done(std::move(handle));
  };
  if (Status status = AwaitSession(); !status.ok()) return finish(status);
  if (IsRefused(id)) return finish(MakeError(ErrorCode::kStale, "the file was removed on another host"));
  if (flags.truncate) {
    auto change = [this, inode](Content& content) -> Status {
      inode->mutex.AssertHeld();
      content.must_publish = true;
      return Truncate(inode, content, 0);
    };
    return ChangeShared(inode, change, finish, {.empties = true, .removes = true, .publishes = true}, caller);
  }
  auto tell = [this, id, finish = std::move(finish)](const Status& status) {
    const ErrorCode code = status.ok() ? ErrorCode{} : status.error().code;
    const bool is_no_fault =
        code == ErrorCode::kNotFound || code == ErrorCode::kIsDirectory || code == ErrorCode::kInterrupted;
    if (!status.ok() && !is_no_fault) {
      spdlog::error("inode {}: cannot be opened: {}", id.value, status.error().message);
      error_names->Note(id);
    }
    finish(status);
  };
  LoadForOpen(inode, caller, {}, std::move(tell));
}

void FileSystem::Impl::LoadForOpen(const InodePtr& inode, const Caller& caller, HostWaits waits, Done<void> done) {
  uint64_t noticed = 0;
  {
    MutexLock lock(inode->mutex);
    noticed = inode->others_noticed;
  }
  auto state = parts.names.ReadFile(inode->id);
  if (!state.ok() || !MustAwaitOthers(inode, *state)) {
    return AdoptForOpen(inode, caller, waits, noticed, std::move(state), std::move(done));
  }
  // A host can take its time, and so can an answer. That is waited for elsewhere, so that all that asks no host does
  // not wait with it. Who is killed is answered at once, and then is asked about no more.
  auto is_answered = std::make_shared<std::atomic<bool>>(false);
  Caller inside = caller;
  inside.cancelled = [is_answered] { return is_answered->load(); };
  auto answer = UnlessKilled(caller, [is_answered, done = std::move(done)](const Status& status) {
    *is_answered = true;
    done(status);
  });
  // The time to come to its turn counts: others may wait for the same host.
  const Deadline deadline = std::chrono::steady_clock::now() + kFinishWait;
  host_waits->Post([this, inode, inside, waits, noticed, deadline, answer] {
    AdoptForOpen(inode, inside, waits, noticed, ReadFinished(inode->id, inside, deadline), answer);
  });
}

void FileSystem::Impl::AdoptForOpen(const InodePtr& inode, const Caller& caller, HostWaits waits, uint64_t noticed,
                                    Result<meta::FileState> state, Done<void> done) {
  state = AfterAnswer(inode, caller, std::move(state));
  if (!state.ok()) return done(state.error());
  if (S_ISDIR(state->inode.mode)) return done(MakeError(ErrorCode::kIsDirectory, "is a directory"));
  Status status;
  {
    MutexLock lock(inode->mutex);
    status = Adopt(inode, *state);
    if (status.ok()) {
      inode->others_seen = std::max(inode->others_seen, noticed);
      inode->looked_at = std::chrono::steady_clock::now();
      inode->look_after = kLookAfterMin;
    }
    // Who was killed has gone: nobody drops it later.
    if (caller.cancelled && caller.cancelled()) DropContentIfUnused(inode);
  }
  std::vector<Digest> away;
  const bool is_away = !status.ok() && status.error().code == ErrorCode::kUnavailable;
  if (is_away && !stop.stop_requested() && waits.MayWait()) away = PagesToOpen(*state);
  if (away.empty()) return done(status);
  AwaitChunks(away, caller, [this, inode, caller, waits, done = std::move(done)](const Status& there) {
    auto load = [this, inode, caller, waits, done, there] {
      if (!there.ok()) return done(there);
      LoadForOpen(inode, caller, waits, done);
    };
    PostFor(caller, std::move(load), done);
  });
}

bool FileSystem::Impl::IsBehind(const InodePtr& inode, uint64_t revision, const std::vector<meta::Pending>& pending) {
  if (!inode->content) return false;  // it will be read
  const bool others_closed = std::any_of(pending.begin(), pending.end(), [&](const meta::Pending& each) {
    return !host->IsOwn(each) && host->Lives(each);
  });
  return others_closed || revision > inode->content->shared->base_revision;
}

void FileSystem::Impl::SeeOthers(const InodePtr& inode, const Caller& caller, Done<void> done) {
  auto see = [this, inode, caller, done] {
    LoadForOpen(inode, caller, {}, [inode, done](const Status& status) {
      if (status.ok() || status.error().code != ErrorCode::kNotFound) return done(status);
      // Removed, and open here: nobody else writes to it any more.
      {
        MutexLock lock(inode->mutex);
        inode->others_seen = inode->others_noticed;
      }
      done({});
    });
  };
  PostFor(caller, std::move(see), done);
}

void FileSystem::Impl::WhenCurrent(const InodePtr& inode, const Caller& caller, Done<void> done) {
  bool is_current = true;
  if (host != nullptr) {
    MutexLock lock(inode->mutex);
    is_current = inode->content && !inode->content->must_reload() && inode->others_seen == inode->others_noticed;
  }
  if (is_current) return done({});
  SeeOthers(inode, caller, std::move(done));
}

void FileSystem::Impl::LookAgain(const InodePtr& inode) {
  const auto now = std::chrono::steady_clock::now();
  if (inode->look_under_way || now - inode->looked_at < inode->look_after) return;
  if (looks_under_way >= kLooksMax || host->session() == 0) return;
  inode->look_under_way = true;
  inode->looked_at = now;
  looks_under_way++;
  blocking->Post([this, inode] {
    const auto state = parts.names.ReadFile(inode->id);
    looks_under_way--;
    const bool has_changed = state.ok() && AdoptPublished(inode, *state);
    {
      MutexLock lock(inode->mutex);
      inode->look_under_way = false;
      if (!state.ok()) return;
      inode->look_after = has_changed ? kLookAfterMin : std::clamp(2 * inode->look_after, kLookAfterMin, kLookAfterMax);
    }
    AskToPublish(inode, UnfinishedElsewhere(inode->id, *state, /*tells=*/false));
  });
}

bool FileSystem::Impl::AdoptPublished(const InodePtr& inode, const meta::FileState& state) {
  const auto is_newer = [&] {
    inode->mutex.AssertHeld();
    if (!inode->content || inode->content->must_reload()) return false;  // it will be read
    return state.record_revision > inode->content->shared->base_revision;
  };
  {
    MutexLock lock(inode->mutex);
    if (!is_newer()) return false;
  }
  // Waited for here, so that no read waits for them with the inode's lock. What is away is there for a later look.
  for (const Digest& page : PagesToOpen(state)) {
    const auto read = store::GetBlocking(parts.chunks, page);
    if (!read.ok() && read.error().code == ErrorCode::kUnavailable) return false;
  }
  MutexLock lock(inode->mutex);
  if (!is_newer()) return false;
  if (AwaitsAnswer(inode, state)) return false;  // the next look
  // What cannot be read is told by the next read, which waits for it or fails.
  if (!Adopt(inode, state).ok()) inode->others_noticed++;
  return true;
}

void FileSystem::Impl::AskToPublish(const InodePtr& inode, const ClusterHost::Work& work) {
  if (work.empty()) return;
  if (asks_under_way++ >= kAsksMax) {
    asks_under_way--;
    return;
  }
  host_waits->Post([this, inode, work] {
    static_cast<void>(host->Finish(work, {std::chrono::steady_clock::now() + kFinishWaitMin, {}}));
    if (const auto state = parts.names.ReadFile(inode->id); state.ok()) AdoptPublished(inode, *state);
    asks_under_way--;
  });
}

std::vector<Digest> FileSystem::Impl::PagesToOpen(const meta::FileState& state) {
  std::vector<Digest> pages;
  if (!state.record) return pages;
  auto recipe = Recipe::Decode(state.record->recipe);
  if (!recipe.ok()) return pages;
  ExtentMap extents;
  if (extents.Load(*recipe, parts.chunks).ok()) return extents.MissingPages(state.record->size, 1);
  for (const PageRef& inner : recipe->inner) pages.push_back(inner.digest);
  return pages;
}

}  // namespace cairnfs::fs
