// Changes of files among other hosts that are no writes, and how others are told of what was closed.
#include <utility>

#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

// How often who waits for the answer to a publish asks whether anybody waits for it.
constexpr auto kLook = std::chrono::milliseconds(100);

}  // namespace

void FileSystem::Impl::ChangeShared(const InodePtr& inode, std::function<Status(Content&)> change, Done<void> done,
                                    const ChangeKind& kind, const Caller& caller) {
  if (Status status = AwaitSession(); !status.ok()) return done(status);
  const uint64_t session = kind.session != 0 ? kind.session : host->session();
  auto one = std::make_shared<const SharedChange>(SharedChange{inode, std::move(change), kind, caller, session});
  auto act = [this, one, done = std::move(done)](const Status& ordered) {
    Status status = ordered;
    if (status.ok() && one->kind.removes) status = loss_witnesses.Tell(one->caller.pid);
    if (!status.ok()) return done(status);
    // Most need not wait, and have no part in the waits of those that do.
    if (auto changed = ChangeCurrent(*one, /*may_wait=*/false)) return FinishChange(*one, *changed, done);
    PostToWait(
        one->caller, [this, one, done] { FinishChange(*one, *ChangeCurrent(*one, /*may_wait=*/true), done); }, done);
  };
  if (kind.removes) return AfterClosed(caller, act);
  act({});
}

std::optional<Status> FileSystem::Impl::ChangeCurrent(const SharedChange& one, bool may_wait) {
  const Result<bool> current = Refresh(one.inode, one.caller, may_wait);
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
  if (changed.ok() && one.kind.sets_times) changed = PutPending(one.inode);
  if (changed.ok() && !one.kind.publishes) changed = CheckSameSession(one.session);
  if (!changed.ok() || !one.kind.publishes) return done(changed);
  AfterClosed(one.caller, [this, inode = one.inode, session = one.session, done = std::move(done)](Status published) {
    if (published.ok()) published = CheckPublished(inode);
    // What was given up with the session looks as if it were published.
    if (published.ok()) published = CheckSameSession(session);
    done(published);
  });
}

Status FileSystem::Impl::CheckPublished(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  if (content == nullptr) return {};
  const bool is_owed = content->changed && content->must_publish;
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
  return content != nullptr && !content->changed && content->shared->published_locally;
}

Status FileSystem::Impl::CheckSynced(Handle& handle) const {
  CAIRNFS_RETURN_IF_ERROR(TakeErrorLocked(handle));
  CAIRNFS_RETURN_IF_ERROR(CheckSession(handle));
  MutexLock lock(handle.inode->mutex);
  const Content* content = handle.inode->content.get();
  if (content == nullptr || !content->changed || !content->publish_error) return {};
  return *content->publish_error;
}

Status FileSystem::Impl::PutPending(const InodePtr& inode) {
  constexpr int kTriesMax = 16;
  for (int tries = 1;; tries++) {
    CAIRNFS_ASSIGN_OR_RETURN(const bool done, TryPutPending(inode));
    if (done) return {};
    if (tries == kTriesMax) return MakeError(ErrorCode::kBusy, "the file is closed by others all the time");
    auto state = parts.names.ReadFile(inode->id);
    if (!state.ok() && state.error().code == ErrorCode::kNotFound) return {};  // no error of those who close it
    if (!state.ok()) return state.error();
    MutexLock lock(inode->mutex);
    if (!inode->content) return {};
    host->NotePending(*state, *inode->content->shared);
  }
}

// Until no put of the file's pending record is under way, and no publish: that takes what it brings out of the record
// that is there, and whoever puts another knows what is left.
Status FileSystem::Impl::AwaitTurnToPut(const InodePtr& inode) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(options.metadata_wait_ms);
  waiting_puts++;
  Status status;
  while (status.ok()) {
    const Content* content = inode->content.get();
    const bool is_sent = content != nullptr && content->shared->is_sent;
    if (inode->pending_puts == 0 && !is_sent) break;
    if (kv::Patience::IsWaitOver(nullptr)) {
      status = Unanswered();
      break;
    }
    if (is_sent && (GivesUpOn(*content) || std::chrono::steady_clock::now() >= deadline)) {
      status = Unanswered();
    } else {
      inode->changed_state.WaitFor(inode->mutex, kLook);
    }
  }
  waiting_puts--;
  return status;
}

// One attempt. False: the record that was there is not what was known of it, or the file is gone. It must be known,
// because what it tells of lost bytes must stay told.
Result<bool> FileSystem::Impl::TryPutPending(const InodePtr& inode) {
  meta::PendingRecord record;
  uint64_t revision_before = 0, number = 0;
  {
    MutexLock lock(inode->mutex);
    // One at a time: each compares what the one before has put, so that those who close the file at once would refuse
    // each other. A put that began after this call tells what this one would, and what became of it counts for both:
    // else a queue of them would wait for each other one by one.
    const uint64_t seen = inode->content ? inode->content->shared->puts_begun : 0;
    CAIRNFS_RETURN_IF_ERROR(AwaitTurnToPut(inode));
    if (!inode->content || !inode->content->changed) return true;
    Content& content = *inode->content;
    SharedContent& shared = *content.shared;
    if (shared.put_ended > seen) {
      if (shared.put_error) return *shared.put_error;
      return true;
    }
    number = ++shared.puts_begun;
    content.must_publish = true;
    record.session = shared.session;
    record.size = shared.SizeMin();
    record.times_are_set = shared.TimesAreSet();
    record.mtime = content.mtime;
    record.ctime = content.ctime;
    record.ranges = UnpublishedRanges(content);
    revision_before = shared.pending_revision;
    if (const LostBytes* lost = shared.LostOf(host->self())) {
      revision_before = lost->revision;
      if (!lost->is_nothing) lost->AddTo(record);
    }
    inode->pending_puts++;
  }
  const std::string key = meta::PendingKey(inode->id, host->self());
  kv::Transaction transaction;
  transaction.operation_id = fmt::format("pending/{}/{}/{}", host->self(), record.session, ++puts_total);
  host->AddSessionCompare(transaction, record.session);
  transaction.IfExists(meta::InodeKey(inode->id)).IfRevision(key, revision_before).Put(key, record.Encode());
  auto revision = parts.kv.Commit(transaction);
  {
    MutexLock lock(inode->mutex);
    inode->pending_puts--;
    // Forsaken meanwhile, it is nobody's to publish: not under the session that came after either.
    const bool is_known = inode->content && inode->content->shared->session == record.session &&
                          record.session == host->session() && !inode->content->must_reload();
    if (is_known && (revision.ok() || revision.error().code != ErrorCode::kConflict)) {
      SharedContent& shared = *inode->content->shared;
      shared.put_ended = number;
      shared.put_error.reset();
      if (!revision.ok()) shared.put_error = revision.error();
      const bool may_have_run =
          !revision.ok() && revision.error().code != ErrorCode::kStale && kv::MayHaveRun(revision.error().code);
      if (may_have_run) shared.unanswered_puts.push_back({std::move(transaction), record});
    }
    if (is_known && revision.ok()) {
      inode->content->shared->NotePut(host->self(), *revision, record);
      MarkChanged(inode);  // a round takes the record away again
      inode->content->must_publish = true;
    }
    inode->changed_state.NotifyAll();
  }
  if (!revision.ok() && revision.error().code != ErrorCode::kConflict) return revision.error();
  if (record.session == host->session()) return revision.ok();
  return SessionLost("what was written is lost");
}

}  // namespace cairnfs::fs
