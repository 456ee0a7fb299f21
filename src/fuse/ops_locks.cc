// Locks that the daemon keeps. The kernel sends these requests in a cluster, and on one host where it reads files in
// memory itself; else it keeps the locks (docs/decisions/locks-on-one-host.md, docs/decisions/locks-over-hosts.md).
#include <fcntl.h>
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "base/clock.h"
#include "coherence/file_locks.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

using coherence::FileLocks;

constexpr std::chrono::milliseconds kTryAgain{2}, kTryFor{1000};

// A lock that waits, as FUSE_INTERRUPT finds it.
struct WaitingRequest {
  WaitingRequest(FileLocks& the_locks, InodeId the_inode) : locks(the_locks), inode(the_inode) {}
  FileLocks& locks;
  const InodeId inode;
  std::atomic<FileLocks::Ticket> ticket{0};  // 0: not known yet
  std::atomic<bool> interrupted{false};
};

// libfuse calls it on a receiving thread and holds the request's mutex: it must not reply, and Cancel does not wait.
void CancelWaiting(fuse_req_t, void* data) {
  auto* waiting = static_cast<WaitingRequest*>(data);
  waiting->interrupted.store(true);
  if (const FileLocks::Ticket ticket = waiting->ticket.load(); ticket != 0)
    waiting->locks.Cancel(waiting->inode, ticket);
}

int ErrnoOfLock(const Result<FileLocks::Outcome>& outcome) {
  if (!outcome.ok()) return outcome.error().code == ErrorCode::kTooLarge ? ENOLCK : ErrnoOf(outcome.error());
  switch (*outcome) {
    case FileLocks::Outcome::kGranted: return 0;
    case FileLocks::Outcome::kWouldBlock: return EAGAIN;
    case FileLocks::Outcome::kDeadlock: return EDEADLK;
    case FileLocks::Outcome::kInterrupted: return EINTR;
  }
  return EIO;
}

// Replies, and frees the lock again when the kernel does not learn of it. It is an error, too, when the lock was
// granted in the host's next session: the locks that the open file had before are lost, and its process has to be told.
// The new holder reads what the holders before it wrote and synced, also through a descriptor that was open meanwhile.
void ReplyLock(fuse_req_t request, fs::FileSystem& filesystem, const FileLocks::Request& lock,
               const Result<FileLocks::Outcome>& outcome) {
  int error = ErrnoOfLock(outcome);
  const bool is_granted = error == 0;
  if (is_granted) {
    if (const Status session = filesystem.CheckSession(lock.handle); !session.ok()) error = ErrnoOf(session.error());
    filesystem.NoteLocked(lock.handle);
  }
  const bool is_told = fuse_reply_err(request, error) == 0;
  if (is_granted && (error != 0 || !is_told)) filesystem.locks().Unlock(lock, [](const Result<void>&) {});
}

void Wait(fuse_req_t request, fs::FileSystem& filesystem, const FileLocks::Request& lock) {
  FileLocks& locks = filesystem.locks();
  auto waiting = std::make_shared<WaitingRequest>(locks, lock.inode);
  fuse_req_interrupt_func(request, &CancelWaiting, waiting.get());
  const auto ticket =
      locks.Lock(lock, [request, &filesystem, lock, waiting](const Result<FileLocks::Outcome>& outcome) {
        // Waits for a CancelWaiting that runs, and none is called after it. So `waiting` may go.
        fuse_req_interrupt_func(request, nullptr, nullptr);
        ReplyLock(request, filesystem, lock, outcome);
      });
  waiting->ticket.store(ticket);
  if (waiting->interrupted.load()) locks.Cancel(lock.inode, ticket);
}

void Unlock(fuse_req_t request, fs::FileSystem& filesystem, const FileLocks::Request& lock) {
  filesystem.PublishBeforeUnlock(
      lock.handle,
      [request, &filesystem, lock] {
        filesystem.locks().Unlock(lock, [request](const Result<void>& status) { ReplyStatus(request, status); });
      },
      CallerOf(request));
}

// A close frees a lock once its RELEASE is served, for which close(2) does not wait. Whoever asks after the close still
// finds the lock free. Until `until` only: each process that exits with a copy of the descriptor closes once more. On a
// host alone TryLock itself waits for the RELEASE.
void Try(fuse_req_t request, fs::FileSystem& filesystem, const FileLocks::Request& lock, Clock::time_point until) {
  FileLocks& locks = filesystem.locks();
  // Before the try: a RELEASE that is served after it is the reason for another one.
  const bool awaits = locks.AwaitsRelease(lock) && Clock::Now() < until;
  locks.TryLock(lock, [request, &filesystem, lock, awaits, until](const Result<FileLocks::Outcome>& outcome) {
    const bool is_refused = outcome.ok() && *outcome == FileLocks::Outcome::kWouldBlock;
    if (!is_refused || !awaits) return ReplyLock(request, filesystem, lock, outcome);
    filesystem.RunBlocking([request, &filesystem, lock, until] {
      Clock::SleepFor(kTryAgain);
      Try(request, filesystem, lock, until);
    });
  });
}

void Lock(fuse_req_t request, fs::FileSystem& filesystem, const FileLocks::Request& lock, bool sleep) {
  if (const Status session = filesystem.CheckSession(lock.handle); !session.ok()) {
    return ReplyError(request, session.error());
  }
  auto ask = [request, &filesystem, lock, sleep] {
    if (sleep) return Wait(request, filesystem, lock);
    Try(request, filesystem, lock, Clock::Now() + kTryFor);
  };
  // A shared lock may take the place of an exclusive one.
  if (lock.type == coherence::LockType::kShared)
    return filesystem.PublishBeforeUnlock(lock.handle, ask, CallerOf(request));
  ask();
}

FileLocks::Request RequestOf(fuse_req_t request, fuse_ino_t inode, const fuse_file_info& file) {
  FileLocks::Request lock;
  lock.inode = InodeId{inode};
  lock.owner = file.lock_owner;
  lock.handle = file.fh;
  lock.pid = static_cast<uint32_t>(fuse_req_ctx(request)->pid);
  return lock;
}

// The kernel has computed and checked start and length.
void TakeRange(const struct flock& range, FileLocks::Request& lock) {
  lock.start = static_cast<uint64_t>(range.l_start);
  lock.last = range.l_len == 0 ? coherence::kLockOffsetMax : lock.start + static_cast<uint64_t>(range.l_len) - 1;
  lock.type = range.l_type == F_WRLCK ? coherence::LockType::kExclusive : coherence::LockType::kShared;
  // The process's id; the request's context has the thread's.
  if (range.l_pid != 0) lock.pid = static_cast<uint32_t>(range.l_pid);
}

}  // namespace

void OpGetLk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, struct flock* range) {
  FileLocks::Request lock = RequestOf(request, inode, *file);
  TakeRange(*range, lock);
  SessionOf(request).filesystem().locks().Test(lock, [request](Result<std::optional<FileLocks::Holder>> holder) {
    if (!holder.ok()) return ReplyError(request, holder.error());
    struct flock answer {};
    answer.l_type = F_UNLCK;
    answer.l_whence = SEEK_SET;
    if (const auto& held = *holder) {
      answer.l_type = held->type == coherence::LockType::kExclusive ? F_WRLCK : F_RDLCK;
      answer.l_start = static_cast<off_t>(held->start);
      answer.l_len = held->last == coherence::kLockOffsetMax ? 0 : static_cast<off_t>(held->last - held->start + 1);
      answer.l_pid = static_cast<pid_t>(held->pid);
    }
    fuse_reply_lock(request, &answer);
  });
}

void OpSetLk(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, struct flock* range, int sleep) {
  FileLocks::Request lock = RequestOf(request, inode, *file);
  TakeRange(*range, lock);
  if (range->l_type == F_UNLCK) return Unlock(request, SessionOf(request).filesystem(), lock);
  Lock(request, SessionOf(request).filesystem(), lock, sleep != 0);
}

void OpFlock(fuse_req_t request, fuse_ino_t inode, fuse_file_info* file, int operation) {
  FileLocks::Request lock = RequestOf(request, inode, *file);
  lock.kind = coherence::LockKind::kFlock;
  lock.type = (operation & LOCK_EX) != 0 ? coherence::LockType::kExclusive : coherence::LockType::kShared;
  if ((operation & LOCK_UN) != 0) return Unlock(request, SessionOf(request).filesystem(), lock);
  Lock(request, SessionOf(request).filesystem(), lock, (operation & LOCK_NB) == 0);
}

}  // namespace cairnfs::fuse
