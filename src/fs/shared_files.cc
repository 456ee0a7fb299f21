// Files among other hosts: close-to-open. What was closed or synced elsewhere was published before that returned, and
// is there when a file is opened here.
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

constexpr int kAnswersMax = 8;  // so many publishes of this host's in a row are waited for
constexpr auto kCancelledLook = std::chrono::milliseconds(100);
// An open file that is read is compared with the store so often, more seldom while nothing changes; and no more than so
// many files at once.
constexpr auto kLookAfterMin = std::chrono::milliseconds(100);
constexpr auto kLookAfterMax = std::chrono::milliseconds(2000);
constexpr unsigned kLooksMax = 4;

void PostOn(BlockingCalls& calls, const Caller& caller, std::function<void()> task, Done<void> refused) {
  if (!caller.killed) {
    if (!calls.Post(std::move(task))) refused(MakeError(ErrorCode::kUnavailable, "the filesystem is stopping"));
    return;
  }
  calls.Post(std::move(task), caller.killed, [refused = std::move(refused)](const Error& why) { refused(why); });
}

}  // namespace

std::unique_ptr<Content> FileSystem::Impl::MakeContent(chunking::Owner owner) const {
  std::unique_ptr<PublishState> state;
  if (host == nullptr)
    state = std::make_unique<PublishState>();
  else
    state = std::make_unique<SharedContent>();
  auto content = std::make_unique<Content>(parts.chunk_params, std::move(state));
  content->owner = owner;
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
  content.shared().base_revision = fresh->shared().base_revision;
  content.shared().own = content.shared().publishing = {};
  content.shared().is_void = false;
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
  if (state.record_revision > content.shared().base_revision) {
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
  const SharedContent& shared = inode->content->shared();
  return shared.is_sent && state.record_revision > shared.base_revision;
}

Result<meta::FileState> FileSystem::Impl::AfterAnswer(const InodePtr& inode, const Caller& caller,
                                                      meta::Namespace::WithMarks marks, Result<meta::FileState> state) {
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
    state = parts.names.ReadFile(inode->id, marks);
  }
  return state;
}

Result<bool> FileSystem::Impl::Refresh(const InodePtr& inode, const Caller& caller, RefreshOptions how) {
  using WithMarks = meta::Namespace::WithMarks;
  const WithMarks marks = how.writes ? WithMarks::kYes : WithMarks::kNo;
  auto read = parts.names.ReadFile(inode->id, marks);
  CAIRNFS_ASSIGN_OR_RETURN(const meta::FileState state,
                           how.may_wait ? AfterAnswer(inode, caller, marks, std::move(read)) : std::move(read));
  MutexLock lock(inode->mutex);
  if (!how.may_wait && AwaitsAnswer(inode, state)) return false;
  CAIRNFS_RETURN_IF_ERROR(Adopt(inode, state));
  if (how.writes) host->NoteMarks(state, inode->content->shared());
  return true;
}

bool FileSystem::Impl::OverlayShared(meta::Attr& attr) {
  InodePtr inode = table.Find(attr.inode);
  if (!inode) return true;
  MutexLock lock(inode->mutex);
  if (attr.content_revision < inode->published_revision) return false;
  // Who has seen the size or time of what another host did reads its bytes.
  if (IsBehind(inode, attr.content_revision)) inode->others_noticed++;
  if (!inode->content || inode->content->must_reload()) return true;
  // What is clean says nothing that the store does not say, which may be newer.
  if (!inode->content->changed) return true;
  const Content& content = *inode->content;
  const SharedContent& shared = content.shared();
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

// No descriptor comes of the open whose publish was to leave a mark: a round in the background takes it away.
void FileSystem::Impl::ForgetTruncation(const InodePtr& inode) {
  if (!inode->content || inode->content->must_reload() || inode->write_open_count > 0) return;
  SharedContent& shared = inode->content->shared();
  shared.stays_marked = false;
  if (!shared.is_marked && !inode->content->changed) return;
  MarkChanged(inode);
  inode->content->must_publish = true;
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
        if (flags.truncate) ForgetTruncation(inode);
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
      content.shared().stays_marked = true;
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
  LoadForOpen({inode, caller, flags.write}, {}, std::move(tell));
}

void FileSystem::Impl::LoadForOpen(const Opening& opening, HostWaits waits, Done<void> done) {
  const auto& [inode, caller, writes] = opening;
  const auto marks = writes ? meta::Namespace::WithMarks::kYes : meta::Namespace::WithMarks::kNo;
  uint64_t noticed = 0;
  {
    MutexLock lock(inode->mutex);
    noticed = inode->others_noticed;
  }
  const auto state = AfterAnswer(inode, caller, marks, parts.names.ReadFile(inode->id, marks));
  if (!state.ok()) return done(state.error());
  if (S_ISDIR(state->inode.mode)) return done(MakeError(ErrorCode::kIsDirectory, "is a directory"));
  Status status;
  {
    MutexLock lock(inode->mutex);
    status = Adopt(inode, *state);
    if (status.ok()) {
      if (writes) host->NoteMarks(*state, inode->content->shared());
      inode->others_seen = std::max(inode->others_seen, noticed);
      inode->looked_at = Clock::Now();
      inode->look_after = kLookAfterMin;
    }
    // Who was killed has gone: nobody drops it later.
    if (caller.cancelled && caller.cancelled()) DropContentIfUnused(inode);
  }
  std::vector<Digest> away;
  const bool is_away = !status.ok() && status.error().code == ErrorCode::kUnavailable;
  if (is_away && !stop.stop_requested() && waits.MayWait()) away = PagesToOpen(*state);
  if (away.empty()) return done(status);
  AwaitChunks(away, caller, [this, opening, waits, done = std::move(done)](const Status& there) {
    auto load = [this, opening, waits, done, there] {
      if (!there.ok()) return done(there);
      LoadForOpen(opening, waits, done);
    };
    PostFor(opening.caller, std::move(load), done);
  });
}

bool FileSystem::Impl::IsBehind(const InodePtr& inode, uint64_t revision) {
  return inode->content && revision > inode->content->shared().base_revision;  // else it will be read
}

void FileSystem::Impl::SeeOthers(const InodePtr& inode, const Caller& caller, Done<void> done) {
  auto see = [this, inode, caller, done] {
    LoadForOpen({inode, caller}, {}, [inode, done](const Status& status) {
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
  const auto now = Clock::Now();
  if (inode->look_under_way || now - inode->looked_at < inode->look_after) return;
  if (looks_under_way >= kLooksMax || host->session() == 0) return;
  inode->look_under_way = true;
  inode->looked_at = now;
  looks_under_way++;
  blocking->Post([this, inode] {
    const auto state = parts.names.ReadFile(inode->id);
    looks_under_way--;
    const bool has_changed = state.ok() && AdoptPublished(inode, *state);
    MutexLock lock(inode->mutex);
    inode->look_under_way = false;
    if (!state.ok()) return;
    inode->look_after = has_changed ? kLookAfterMin : std::clamp(2 * inode->look_after, kLookAfterMin, kLookAfterMax);
  });
}

bool FileSystem::Impl::AdoptPublished(const InodePtr& inode, const meta::FileState& state) {
  const auto is_newer = [&] {
    inode->mutex.AssertHeld();
    if (!inode->content || inode->content->must_reload()) return false;  // it will be read
    return state.record_revision > inode->content->shared().base_revision;
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
