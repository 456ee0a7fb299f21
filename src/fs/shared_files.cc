// Files among other hosts: close-to-open. What was closed or synced elsewhere was published before that returned, and
// is there when a file is opened here.
#include "fs/shared_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "fs/closing.h"
#include "fs/privileges.h"
#include "fs/waits.h"

namespace cairnfs::fs {
namespace {

constexpr int kAnswersMax = 8;  // so many publishes of this host's in a row are waited for
// An open file that is read is compared with the store so often, more seldom while nothing changes; and no more than so
// many files at once.
constexpr auto kLookAfterMin = std::chrono::milliseconds(100);
constexpr auto kLookAfterMax = std::chrono::milliseconds(2000);
constexpr unsigned kLooksMax = 4;

// Whether others have published what the content has not.
bool IsBehind(const InodePtr& inode, uint64_t revision) REQUIRES_LOCK(inode->mutex) {
  return inode->content && revision > inode->content->shared().base_revision;  // else it will be read
}

}  // namespace

// Each attempt is of the session that there is then.
std::function<void(kv::Transaction&, InodeId)> SharedFiles::MarkCreated(uint64_t& session) {
  return [this, &session](kv::Transaction& transaction, InodeId inode) {
    session = at_.host.session();
    at_.host.AddSessionCompare(transaction, session);
    at_.host.AddMark(transaction, inode, session);
  };
}

void SharedFiles::NoteCreated(const InodePtr& inode, uint64_t session) {
  if (session != 0 && session == at_.host.session()) inode->content->shared().is_marked = true;
}

// The mark that came with the name may be of a session that was lost meanwhile: the first publish takes it away.
void SharedFiles::EndCreate(const Context& context, const InodePtr& inode, uint64_t session) {
  if (session == 0 || session == at_.host.session()) return;
  Caller caller;
  caller.context = context;
  static_cast<void>(Refresh({inode, caller, WithMarks::kYes}, MayWait::kYes).ok());
}

Status SharedFiles::MayOpen(const Context& context, InodeId id) {
  CAIRNFS_RETURN_IF_ERROR(at_.session.Await(context));
  if (IsRefused(context, id)) return MakeError(ErrorCode::kStale, "the file was removed on another host");
  return {};
}

bool SharedFiles::IsRefused(const Context& context, InodeId id) {
  if (!orphans_->Refuses(id)) return false;
  // It has a name where the store went back to a state before it was deleted.
  const auto attr = at_.parts.names.GetAttr(context, id);
  if (!attr.ok() || attr->nlink == 0) return true;
  orphans_->Allow(id);
  return false;
}

Result<meta::FileState> SharedFiles::ReadAfterAnswer(const Opening& opening) {
  const InodePtr& inode = opening.inode;
  const Context& context = opening.caller.context;
  auto state = at_.parts.names.ReadFile(context, inode->id, opening.marks);
  for (int tries = 0; state.ok() && tries < kAnswersMax; tries++) {
    {
      MutexLock lock(inode->mutex);
      if (!SharedRecords::AwaitsAnswer(inode, *state)) break;
      const auto is_over = [&]() REQUIRES_LOCK(inode->mutex) {
        return !SharedRecords::AwaitsAnswer(inode, *state) || at_.session.GivesUpOn(inode->content->shared());
      };
      // The end of waits wakes it, and is no reason to give up on an answer that is on its way.
      if (!at_.session.waits_ended()) {
        static_cast<void>(context.WithStop(at_.session.waits_end()).Wait(inode->mutex, inode->changed_state, is_over));
      }
      if (!context.Wait(inode->mutex, inode->changed_state, is_over)) return CallerIsGone();
      if (SharedRecords::AwaitsAnswer(inode, *state)) return PublishInDoubt();
    }
    state = at_.parts.names.ReadFile(context, inode->id, opening.marks);
  }
  return state;
}

Result<bool> SharedFiles::Refresh(const Opening& opening, MayWait may_wait) {
  const InodePtr& inode = opening.inode;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::FileState state,
                           may_wait == MayWait::kYes
                               ? ReadAfterAnswer(opening)
                               : at_.parts.names.ReadFile(opening.caller.context, inode->id, opening.marks));
  MutexLock lock(inode->mutex);
  if (may_wait == MayWait::kNo && SharedRecords::AwaitsAnswer(inode, state)) return false;
  CAIRNFS_RETURN_IF_ERROR(at_.records.Adopt(inode, state));
  if (opening.marks == WithMarks::kYes) at_.host.NoteMarks(state, inode->content->shared());
  return true;
}

void SharedFiles::Refresh(const InodePtr& inode, const Caller& caller) {
  static_cast<void>(Refresh({inode, caller}, MayWait::kYes).ok());
}

Result<meta::Attr> SharedFiles::ReadAttr(const std::function<Result<meta::Attr>()>& read) {
  // A store that gave a record's revision gives no older one; should it all the same, what it gives is told.
  constexpr int kTriesMax = 64;
  for (int tries = 1;; tries++) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, read());
    if (!S_ISREG(attr.mode) || Overlay(attr) || tries >= kTriesMax) return attr;
  }
}

bool SharedFiles::Overlay(meta::Attr& attr) {
  InodePtr inode = at_.table.Find(attr.inode);
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
  if (Privileges::WillLoseSetId(inode, attr)) attr.mode &= ~static_cast<uint32_t>(S_ISUID | S_ISGID);
  return true;
}

// No descriptor comes of the open whose publish was to leave a mark: a round in the background takes it away.
void SharedFiles::NoteTruncationFailed(const InodePtr& inode) {
  if (!inode->content || inode->content->must_reload() || inode->write_open_count > 0) return;
  SharedContent& shared = inode->content->shared();
  shared.stays_marked = false;
  if (!shared.is_marked && !inode->content->changed) return;
  at_.contents.MarkChanged(inode);
  inode->content->must_publish = true;
}

void SharedFiles::LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) {
  Load({inode, caller, flags.write ? WithMarks::kYes : WithMarks::kNo}, {}, std::move(done));
}

Status SharedFiles::Adopt(const Opening& opening, const meta::FileState& state, uint64_t noticed) {
  const auto& [inode, caller, marks] = opening;
  MutexLock lock(inode->mutex);
  const Status status = at_.records.Adopt(inode, state);
  if (status.ok()) {
    if (marks == WithMarks::kYes) at_.host.NoteMarks(state, inode->content->shared());
    inode->others_seen = std::max(inode->others_seen, noticed);
    inode->looked_at = Clock::Now();
    inode->look_after = kLookAfterMin;
  }
  // Who was killed has gone: nobody drops it later.
  if (caller.context.Expired()) at_.contents.DropIfUnused(inode);
  return status;
}

void SharedFiles::Load(const Opening& opening, HostWaits waits, Done<void> done) {
  const InodePtr& inode = opening.inode;
  uint64_t noticed = 0;
  {
    MutexLock lock(inode->mutex);
    noticed = inode->others_noticed;
  }
  const auto state = ReadAfterAnswer(opening);
  if (!state.ok()) return done(state.error());
  if (S_ISDIR(state->inode.mode)) return done(MakeError(ErrorCode::kIsDirectory, "is a directory"));
  const Status status = Adopt(opening, *state, noticed);
  std::vector<Digest> away;
  const bool is_away = !status.ok() && status.error().code == ErrorCode::kUnavailable;
  if (is_away && !at_.stop.stop_requested() && waits.MayWait()) away = at_.records.PagesToOpen(*state);
  if (away.empty()) return done(status);
  auto go_on = [this, opening, waits, done = std::move(done)](const Status& there) {
    auto load = [this, opening, waits, done, there] {
      if (!there.ok()) return done(there);
      Load(opening, waits, done);
    };
    at_.calls.Run(opening.caller, std::move(load), done);
  };
  AwaitChunks(at_.parts.chunks, at_.waits, away, opening.caller, std::move(go_on));
}

bool SharedFiles::MustLook(const InodePtr& inode) {
  return !inode->content || inode->content->must_reload() || inode->others_seen != inode->others_noticed;
}

void SharedFiles::LookForOthers(const InodePtr& inode, const Caller& caller, Done<void> done) {
  auto look = [this, inode, caller, done] {
    Load({inode, caller}, {}, [inode, done](const Status& status) {
      if (status.ok() || status.error().code != ErrorCode::kNotFound) return done(status);
      // Removed, and open here: nobody else writes to it any more.
      {
        MutexLock lock(inode->mutex);
        inode->others_seen = inode->others_noticed;
      }
      done({});
    });
  };
  at_.calls.Run(caller, std::move(look), done);
}

void SharedFiles::WhenCurrent(const InodePtr& inode, const Caller& caller, Done<void> done) {
  bool is_current = false;
  {
    MutexLock lock(inode->mutex);
    is_current = !MustLook(inode);
  }
  if (is_current) return done({});
  LookForOthers(inode, caller, std::move(done));
}

void SharedFiles::NoteLocked(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  inode->others_noticed++;
}

void SharedFiles::NoteRead(const InodePtr& inode) {
  const auto now = Clock::Now();
  if (inode->look_under_way || now - inode->looked_at < inode->look_after) return;
  if (looks_under_way_ >= kLooksMax || at_.host.session() == 0) return;
  inode->look_under_way = true;
  inode->looked_at = now;
  looks_under_way_++;
  auto look = [this, inode] {
    const auto state = at_.parts.names.ReadFile({}, inode->id);
    looks_under_way_--;
    const bool has_changed = state.ok() && AdoptPublished(inode, *state);
    MutexLock lock(inode->mutex);
    inode->look_under_way = false;
    if (!state.ok()) return;
    inode->look_after = has_changed ? kLookAfterMin : std::clamp(2 * inode->look_after, kLookAfterMin, kLookAfterMax);
  };
  static_cast<void>(at_.calls.Run(std::move(look)));
}

bool SharedFiles::AdoptPublished(const InodePtr& inode, const meta::FileState& state) {
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
  for (const Digest& page : at_.records.PagesToOpen(state)) {
    const auto read = store::GetBlocking(at_.parts.chunks, page);
    if (!read.ok() && read.error().code == ErrorCode::kUnavailable) return false;
  }
  MutexLock lock(inode->mutex);
  if (!is_newer()) return false;
  if (SharedRecords::AwaitsAnswer(inode, state)) return false;  // the next look
  // What cannot be read is told by the next read, which waits for it or fails.
  if (!at_.records.Adopt(inode, state).ok()) inode->others_noticed++;
  return true;
}

std::vector<Digest> SharedFiles::PagesToOpen(const Context& context, InodeId id) {
  const auto state = at_.parts.names.ReadFile(context, id);
  return state.ok() ? at_.records.PagesToOpen(*state) : std::vector<Digest>();
}

// A stream of appends is of one host: it does not ask each time.
bool SharedFiles::ContinuesAppends(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->content && inode->content->changed && inode->others_seen == inode->others_noticed;
}

// The kernel appends at the size that it believes in, which other hosts' appends, and where those had this host's go,
// leave behind: an append goes to the end. Only pieces of one large direct write may come out of order, and lie where
// they say; the kernel sends all others one after the other.
uint64_t SharedFiles::PlaceAppend(const InodePtr& inode, const FileSystem::WriteRequest& request) {
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

void SharedFiles::Change(FileChange change, Done<void> done) {
  if (Status status = at_.session.Await(change.caller.context); !status.ok()) return done(status);
  if (change.session == 0) change.session = at_.host.session();
  const bool removes = change.removes;
  const Caller caller = change.caller;
  auto act = [this, change = std::move(change), done = std::move(done)](const Status& ordered) {
    if (!ordered.ok()) return done(ordered);
    // Most need not wait, and have no part in the waits of those that do.
    if (auto changed = ChangeCurrent(change, MayWait::kNo)) return FinishChange(change, *changed, done);
    at_.calls.RunToWait(
        change.caller, [this, change, done] { FinishChange(change, *ChangeCurrent(change, MayWait::kYes), done); },
        done);
  };
  if (!removes) return act({});
  AfterUnawaited({at_.rounds, at_.waits, at_.calls}, at_.host, caller, std::move(act));
}

std::optional<Status> SharedFiles::ChangeCurrent(const FileChange& change, MayWait may_wait) {
  const Result<bool> current = Refresh({change.inode, change.caller, WithMarks::kYes}, may_wait);
  if (!current.ok()) {
    // Who empties the file needs nothing of what is there.
    const ErrorCode code = current.error().code;
    if (!change.empties || code == ErrorCode::kNotFound || code == ErrorCode::kInterrupted) return current.error();
  } else if (!*current) {
    return std::nullopt;
  }
  if (may_wait == MayWait::kYes) return at_.contents.Change(change);
  auto status = at_.contents.TryChange(change, MayWait::kYes);
  if (status && at_.contents.MayMakeRoomFor(*status)) return std::nullopt;
  return status;
}

void SharedFiles::FinishChange(const FileChange& change, Status changed, Done<void> done) {
  if (changed.ok() && !change.publishes) changed = at_.session.Check(change.session);
  if (!changed.ok() || !change.publishes) return done(changed);
  auto finish = [this, inode = change.inode, session = change.session, done = std::move(done)](const Status& round) {
    const bool is_killed = !round.ok() && round.error().code == ErrorCode::kInterrupted;
    done(is_killed ? round : CheckOutcome(at_.session, inode, session, round));
  };
  AfterClosed({at_.rounds, at_.waits, at_.calls}, change.caller, std::move(finish));
}

}  // namespace cairnfs::fs
