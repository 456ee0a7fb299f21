// Closing among several hosts.
#include <algorithm>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "fs/closing.h"
#include "fs/processes.h"

namespace cairnfs::fs {
namespace {

// A close returns before its bytes are published: other hosts read old ones.
Failpoint skip_close_wait("fs.skip_close_wait", Failpoint::Kind::kSkippable);

constexpr auto kMarkWaitMax = std::chrono::seconds(2);

SyncRounds::Sources JustTheFile(const Handle& handle) {
  meta::Attr file;
  file.inode = handle.inode->id;
  return {file};
}

}  // namespace

Status SharedClosing::BeginClose(Handle& handle, Closer closer) {
  const InodePtr& inode = handle.inode;
  Status status;
  {
    MutexLock lock(inode->mutex);
    status = TakeError(inode, handle);
    Content* content = inode->content.get();
    if (handle.flags.write && content != nullptr && content->changed && closer != Closer::kOther) {
      content->must_publish = true;
      content->publish->NoteClosed();
      if (closer == Closer::kKilledWriter) content->shared().NoteUnawaited();
      if (content->barriers_waiting == 0) at_.streams.CutClosed(inode);
    }
    if (handle.flags.write) inode->closed_while_open = true;
  }
  return status.ok() ? at_.session.Check(handle) : status;
}

// POSIX: closing any descriptor of a file frees all that the process locked in it. Whoever gets the lock next finds
// what was written under it, though this close published nothing: of another descriptor, or of a killed process, which
// does not wait.
void SharedClosing::Close(const HandlePtr& handle, const Descriptor& closed, const Caller& caller, Done<void> done) {
  at_.locks.NoteClosed(handle->inode->id, closed.handle);
  auto free_locks = [this, handle, owner = closed.lock_owner, thread = caller.pid, done](const Status& status) {
    if (!at_.locks.MayHoldOf(handle->inode->id, owner)) return done(status);
    const bool is_answered = DiesBySignal(thread);
    if (is_answered) done(status);
    PublishBeforeUnlock(handle, {}, [this, inode = handle->inode->id, owner, done, status, is_answered] {
      at_.locks.ReleaseOwner(inode, owner, [done, status, is_answered](const Status& released) {
        if (!is_answered) done(status.ok() ? released : status);
      });
    });
  };
  AwaitPublish(handle, caller, std::move(free_locks));
}

void SharedClosing::FreeLocks(const HandlePtr& handle, HandleId id) {
  const InodeId inode = handle->inode->id;
  if (!at_.locks.MayHoldThrough(inode, id)) return;
  PublishBeforeUnlock(handle, {}, [this, inode, id] { at_.locks.ReleaseHandle(inode, id); });
}

void SharedClosing::AwaitPublish(const HandlePtr& handle, const Caller& caller, Done<void> done) {
  const Closer closer = Judge(*handle, caller);
  const Status status = BeginClose(*handle, closer);
  if (!status.ok() || !handle->flags.write || closer != Closer::kWriter) return done(status);
  if (skip_close_wait.PassOrSkip()) return done(status);
  auto answer = [this, handle, done](const Status& round) {
    if (!round.ok() && round.error().code == ErrorCode::kInterrupted) NoteUnawaited(handle->inode);
    const Status outcome = CheckOutcome(at_.session, handle->inode, handle->session, round);
    if (!outcome.ok()) static_cast<void>(TakeErrorLocked(*handle).ok());  // it is told now
    done(outcome);
  };
  auto await = [this, caller, file = JustTheFile(*handle), answer = std::move(answer)] {
    at_.rounds.Request(at_.waits.Within(caller.context, answer), SyncRounds::Scope::kClosed, file);
  };
  if (IsMarked(handle->inode)) return await();
  // Now, not in the round that it waits for: that begins when the one that runs has ended, which may wait for nodes.
  // Should it fail, the round tells.
  auto mark = [this, handle, context = caller.context, await = std::move(await)] {
    static_cast<void>(at_.marks.PutUntilPublished(context, handle->inode).ok());
    await();
  };
  auto refused = [handle, done](const Status& why) {
    NoteUnawaited(handle->inode);
    done(why);
  };
  at_.calls.Run(caller, std::move(mark), std::move(refused));
}

bool SharedClosing::IsMarked(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  return content == nullptr || !content->changed || content->shared().MayBeMarked();
}

void SharedClosing::NoteUnawaited(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->content && inode->content->changed) inode->content->shared().NoteUnawaited();
}

// Nothing was written since the file was made or truncated, or all of that is published: a round in the background
// takes the mark away.
void SharedClosing::NoteReleased(const InodePtr& inode, const OpenFlags& flags) {
  SharedContent& shared = inode->content->shared();
  // Nobody writes to it any more, and no close of a writer has waited for its bytes, or was told that they failed. Of a
  // file that is only marked there are none.
  const bool is_reported = inode->content->publish_error || !inode->content->lost.empty() || shared.failure;
  const bool has_ended = flags.write && inode->write_open_count == 0;
  const bool has_bytes = inode->content->changed && HasUnpublishedBytes(*inode->content);
  if (has_ended && has_bytes && !is_reported) shared.NoteUnawaited();
  const bool is_written_no_more = inode->write_open_count == 0 || !inode->content->changed;
  if (!flags.write || !shared.MayBeMarked() || !is_written_no_more || shared.is_void) return;
  shared.is_asked_for = true;
  at_.contents.MarkChanged(inode);
}

SharedClosing::Closer SharedClosing::Judge(Handle& handle, const Caller& caller) {
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

void SharedClosing::AskForMarked() {
  at_.table.ForEachHeld([this](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    Content* content = inode->content.get();
    if (content == nullptr || content->must_reload() || !content->shared().MayBeMarked()) return;
    content->must_publish = content->shared().is_asked_for = true;
    at_.contents.MarkChanged(inode);
  });
}

void SharedClosing::NoteWriter(Handle& handle, const Caller& caller) {
  constexpr size_t kThreadsMax = 256;
  MutexLock lock(handle.mutex);
  if (handle.writers.contains(0) || handle.writer_threads.contains(caller.pid)) return;
  const bool are_too_many = handle.writer_threads.size() == kThreadsMax;
  handle.writer_threads.insert(caller.pid);
  handle.writers.insert(are_too_many ? 0 : ProcessOf(caller.pid));
}

bool SharedClosing::IsDurableHere(const InodePtr& inode) const {
  MutexLock lock(inode->mutex);
  const Content* content = inode->content.get();
  return content != nullptr && !content->changed && content->shared().published_locally;
}

// munmap of a mapping whose descriptor was closed before sends its stores without a word that it ends. They are
// published in the background; until then the file is marked.
bool SharedClosing::MustMark(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->closed_while_open && inode->content && !inode->content->shared().is_marked;
}

// Not for long: while pages wait for their answer the kernel sends no other background requests of the mount. The bytes
// are kept and will be published, whatever becomes of the mark: no reason to drop the pages.
void SharedClosing::AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer) {
  const Context context = Context().WithTimeout(kMarkWaitMax);
  auto finish = [this, inode, answer = std::move(answer)](const Status& marked) {
    if (!marked.ok()) {
      spdlog::warn("inode {}: other hosts do not know yet of stores through a mapping that may have ended: {}",
                   inode->id.value, marked.error().message);
      at_.error_names.Note(inode->id);
    }
    answer();
  };
  SyncRounds::Answer tell = at_.waits.Within(
      context, [] { return PublishInDoubt(); }, std::move(finish));
  const bool is_posted = at_.calls.Run([this, inode, context, tell] {
    tell(at_.host.membership().LeaseHolds() ? at_.marks.PutUntilPublished(context, inode) : Status(PublishInDoubt()));
  });
  if (!is_posted) tell(PublishInDoubt());
}

bool SharedClosing::AskForAll(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  Content* content = inode->content.get();
  if (content == nullptr || !content->changed) return false;
  content->must_publish = content->shared().is_asked_for = true;
  return true;
}

void SharedClosing::PublishFirst(const InodePtr& inode, const Caller& caller, Done<void> then) {
  if (!AskForAll(inode)) return then({});
  auto go_on = [then = std::move(then)](const Status& round) {
    const bool is_killed = !round.ok() && round.error().code == ErrorCode::kInterrupted;
    then(is_killed ? round : Status());
  };
  AfterClosed({at_.rounds, at_.waits, at_.calls}, caller, std::move(go_on));
}

void SharedClosing::PublishBeforeUnlock(const HandlePtr& handle, const Caller& caller, std::function<void()> then) {
  if (!AskForAll(handle->inode)) return then();
  auto answer = [this, handle, then = std::move(then)](const Status& round) {
    // Whoever unlocks is not told of an error: fsync and close tell it.
    const Status outcome = CheckOutcome(at_.session, handle->inode, handle->session, round);
    if (!outcome.ok()) {
      spdlog::warn("inode {}: unlocked before what was written could be published: {}", handle->inode->id.value,
                   outcome.error().message);
    }
    then();
  };
  at_.rounds.Request(at_.waits.Within(caller.context, std::move(answer)), SyncRounds::Scope::kClosed,
                     JustTheFile(*handle));
}

}  // namespace cairnfs::fs
