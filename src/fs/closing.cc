#include "fs/closing.h"

#include <utility>

#include "base/log.h"
#include "fs/processes.h"

namespace cairnfs::fs {

Status TakeError(const InodePtr& inode, Handle& handle) {
  MutexLock lock(handle.mutex);
  return inode->error.Take(handle.error_seen);
}

Status TakeErrorLocked(Handle& handle) {
  const InodePtr& inode = handle.inode;
  MutexLock lock(inode->mutex);
  return TakeError(inode, handle);
}

Status CheckOutcome(const HostSession& session, const InodePtr& inode, uint64_t under, Status round) {
  {
    // What failed may be of other files.
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed) round = {};
  }
  if (round.ok()) round = CheckPublished(inode);
  // What was given up with the session looks as if it were published.
  if (round.ok()) round = session.Check(under);
  return round;
}

Status CheckPublished(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  if (content == nullptr) return {};
  const bool is_unpublished = content->changed && (content->must_publish || content->in_round);
  if (content->lost.empty()) {
    if (!is_unpublished) return {};
    if (content->publish_error) return *content->publish_error;
  }
  if (auto why = content->WhyNotWhole()) return *why;
  return {};
}

void AfterClosed(const RoundWait& at, const Caller& caller, Done<void> then) {
  Calls& calls = at.calls;
  auto run = [&calls, caller,
              then = Done<void>(at.waits.Within(caller.context, std::move(then)))](const Status& status) {
    calls.Run(
        caller, [then, status] { then(status); }, then);
  };
  at.rounds.Request(std::move(run), SyncRounds::Scope::kClosed);
}

void AfterUnawaited(const RoundWait& at, ClusterHost& host, const Caller& caller, Done<void> then) {
  const auto is_vain = [&host] { return host.chunks().LacksNodes(); };
  if (host.unawaited_files().empty() || at.rounds.failing() || is_vain()) return then({});
  auto go_on = [then = std::move(then)](const Status& waited) {
    const bool is_killed = !waited.ok() && waited.error().code == ErrorCode::kInterrupted;
    then(is_killed ? waited : Status());
  };
  auto answer =
      at.waits.WhileNotVain(caller.context, is_vain, [&calls = at.calls, caller, go_on](const Status& waited) {
        calls.Run(
            caller, [go_on, waited] { go_on(waited); }, go_on);
      });
  at.rounds.Request(std::move(answer), SyncRounds::Scope::kClosed);
}

void LocalClosing::NoteWriter(Handle& handle, const Caller& caller) {
  MutexLock lock(handle.mutex);
  if (handle.writer_threads.size() < 2) handle.writer_threads.insert(caller.pid);
}

// False only of a child of the process of which one thread has written through the handle. What is mapped for writing
// is open for reading too.
bool LocalClosing::MayHaveWritten(Handle& handle, const Caller& caller) {
  uint32_t writer = 0;
  {
    MutexLock lock(handle.mutex);
    if (handle.writer_threads.size() == 1) writer = *handle.writer_threads.begin();
  }
  if (writer == 0 || caller.pid == 0 || writer == caller.pid || handle.flags.read) return true;
  const pid_t process = ProcessOf(writer);
  return ProcessOf(caller.pid) == process || ParentOf(caller.pid) != process;
}

void LocalClosing::Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) {
  const InodePtr& inode = handle->inode;
  at_.locks.NoteClosed(inode->id, closed.handle);
  bool is_new = false;
  if (handle->flags.write) {
    MutexLock lock(inode->mutex);
    is_new = inode->content && inode->content->changed && !inode->content->must_publish;
  }
  // Each dup, fork and exec closes descriptors. Of a file that its parent writes on that is no close.
  const bool is_close = handle->flags.write && (!is_new || MayHaveWritten(*handle, caller));
  Status status;
  uint64_t closed_bytes = 0;
  {
    MutexLock lock(inode->mutex);
    status = TakeError(inode, *handle);
    Content* content = inode->content.get();
    if (is_close && content != nullptr && content->changed) {
      if (!content->must_publish) closed_bytes = content->UnsavedBytes();
      content->must_publish = true;
      if (content->barriers_waiting == 0) at_.streams.CutClosed(inode);
    }
    if (status.ok() && handle->flags.write) status = CheckDisk(inode);
  }
  if (closed_bytes > 0) at_.rounds.NoteClosed(closed_bytes);
  if (!at_.locks.MayHoldOf(inode->id, closed.lock_owner)) return done(status);
  at_.locks.ReleaseOwner(inode->id, closed.lock_owner, [done, status](const Status&) { done(status); });
}

Status LocalClosing::CheckDisk(const InodePtr& inode) {
  if (!inode->content) return {};
  const auto failure = at_.rounds.DiskFailure();
  Content& content = *inode->content;
  if (!failure || (!content.changed && content.flushed_with <= at_.rounds.rounds_total())) return {};
  if (!std::exchange(content.failure_noted, true)) {
    spdlog::error("inode {}: what was written to it is not durable: {}", inode->id.value, failure->message);
    at_.error_names.Note(inode->id);
  }
  return *failure;
}

}  // namespace cairnfs::fs
