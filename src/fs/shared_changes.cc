// Changes of files among other hosts that are no writes, and how what was written is published.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {

void FileSystem::Impl::ChangeShared(const InodePtr& inode, std::function<Status(Content&)> change, Done<void> done,
                                    const ChangeKind& kind, const Caller& caller) {
  if (Status status = AwaitSession(); !status.ok()) return done(status);
  const uint64_t session = kind.session != 0 ? kind.session : host->session();
  auto one = std::make_shared<const SharedChange>(SharedChange{inode, std::move(change), kind, caller, session});
  auto act = [this, one, done = std::move(done)](const Status& ordered) {
    if (!ordered.ok()) return done(ordered);
    // Most need not wait, and have no part in the waits of those that do.
    if (auto changed = ChangeCurrent(*one, /*may_wait=*/false)) return FinishChange(*one, *changed, done);
    PostToWait(
        one->caller, [this, one, done] { FinishChange(*one, *ChangeCurrent(*one, /*may_wait=*/true), done); }, done);
  };
  if (kind.removes) return AfterClosed(caller, act);
  act({});
}

std::optional<Status> FileSystem::Impl::ChangeCurrent(const SharedChange& one, bool may_wait) {
  const Result<bool> current = Refresh(one.inode, one.caller, {.may_wait = may_wait, .writes = true});
  if (!current.ok()) {
    // Who empties the file needs nothing of what is there.
    const ErrorCode code = current.error().code;
    if (!one.kind.empties || code == ErrorCode::kNotFound || code == ErrorCode::kInterrupted) return current.error();
  } else if (!*current) {
    return std::nullopt;
  }
  if (may_wait) return ChangeQuietly(one.inode, one.change, one.kind.empties, one.session);
  return TryChange(one.inode, one.change, /*may_wait=*/true, one.kind.empties, one.session);
}

void FileSystem::Impl::FinishChange(const SharedChange& one, Status changed, Done<void> done) {
  if (changed.ok() && !one.kind.publishes) changed = CheckSameSession(one.session);
  if (!changed.ok() || !one.kind.publishes) return done(changed);
  auto finish = [this, inode = one.inode, session = one.session, done = std::move(done)](const Status& round) {
    const bool is_killed = !round.ok() && round.error().code == ErrorCode::kInterrupted;
    done(is_killed ? round : CheckOutcome(inode, session, round));
  };
  AfterClosed(one.caller, std::move(finish));
}

Status FileSystem::Impl::CheckOutcome(const InodePtr& inode, uint64_t session, Status round) {
  {
    // What failed may be of other files.
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed) round = {};
  }
  if (round.ok()) round = CheckPublished(inode);
  // What was given up with the session looks as if it were published.
  if (round.ok()) round = CheckSameSession(session);
  return round;
}

FileSystem::Impl::Closer FileSystem::Impl::JudgeCloser(Handle& handle, const Caller& caller) {
  bool has_pages = false;
  {
    MutexLock lock(handle.inode->mutex);
    const Content* content = handle.inode->content.get();
    if (content == nullptr || !content->changed) return Closer::kOther;
    has_pages = content->shared().has_pages;
  }
  std::set<pid_t> writers;
  {
    MutexLock lock(handle.mutex);
    writers = handle.writers;
  }
  if (writers.empty() && !has_pages) return Closer::kOther;
  const pid_t closer = ProcessOf(caller.pid);
  const bool wrote = has_pages || closer == 0 || writers.contains(closer) || writers.contains(0) ||
                     std::none_of(writers.begin(), writers.end(), IsAlive);
  if (!wrote) return Closer::kOther;
  return DiesBySignal(caller.pid) ? Closer::kKilledWriter : Closer::kWriter;
}

void FileSystem::Impl::NoteAskedFor(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->content) inode->content->publish->NoteAskedFor();
}

void FileSystem::Impl::AskForMarked() {
  if (host == nullptr) return;
  table.ForEachHeld([this](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    Content* content = inode->content.get();
    if (content == nullptr || content->must_reload() || !content->shared().is_marked) return;
    content->must_publish = content->shared().is_asked_for = true;
    MarkChanged(inode);
  });
}

void FileSystem::Impl::NoteWriter(Handle& handle, const Caller& caller) {
  constexpr size_t kThreadsMax = 256;
  MutexLock lock(handle.mutex);
  if (handle.writers.contains(0) || handle.writer_threads.contains(caller.pid)) return;
  const bool are_too_many = handle.writer_threads.size() == kThreadsMax;
  handle.writer_threads.insert(caller.pid);
  handle.writers.insert(are_too_many ? 0 : ProcessOf(caller.pid));
}

Status FileSystem::Impl::MarkUnpublished(const InodePtr& inode) {
  uint64_t session = 0;
  {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed || inode->content->shared().is_marked) return {};
    session = inode->content->shared().session;
  }
  kv::Transaction transaction;
  host->AddSessionCompare(transaction, session);
  transaction.IfExists(meta::InodeKey(inode->id));
  host->AddMark(transaction, inode->id, session);
  const auto marked = parts.kv.Commit(transaction);
  if (!marked.ok() && !kv::MayHaveRun(marked.error().code)) return marked.error();
  MutexLock lock(inode->mutex);
  if (inode->content && session == host->session()) {
    MarkChanged(inode);  // a round takes the mark away again, also where it has published the file meanwhile
    inode->content->must_publish = true;
    inode->content->shared().is_marked = inode->content->shared().is_asked_for = true;
  }
  if (!marked.ok()) return marked.error();
  return {};
}

Status FileSystem::Impl::CheckPublished(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  if (content == nullptr) return {};
  const bool is_owed = content->changed && (content->must_publish || content->owed);
  if (content->lost.empty()) {
    if (!is_owed) return {};
    if (content->publish_error) return *content->publish_error;
  }
  if (auto why = content->WhyNotWhole()) return *why;
  return {};
}

bool FileSystem::Impl::IsDurableHere(const InodePtr& inode) const {
  if (host == nullptr) return false;
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  return content != nullptr && !content->changed && content->shared().published_locally;
}

Status FileSystem::Impl::CheckSynced(Handle& handle) const {
  CAIRNFS_RETURN_IF_ERROR(TakeErrorLocked(handle));
  CAIRNFS_RETURN_IF_ERROR(CheckSession(handle));
  MutexLock lock(handle.inode->mutex);
  const Content* content = handle.inode->content.get();
  if (content == nullptr || !content->changed || !content->publish_error) return {};
  return *content->publish_error;
}

}  // namespace cairnfs::fs
