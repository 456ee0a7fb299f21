#include "coherence/inode_locks.h"

#include <algorithm>

namespace cairnfs::coherence {
namespace {

using Kind = LockOperation::Kind;
using Step = LockWork::Step;
using std::chrono::nanoseconds;

// The kernel sends RELEASE without waiting for it, so that a lock may be asked for just ahead of the release that the
// same program did before. What is refused because of a lock of this host is tried once more after this; where that
// rest ends late, threads wait for a processor, as may the one with the release: then again, much later.
constexpr nanoseconds kReleaseGrace = std::chrono::milliseconds(3);
constexpr nanoseconds kReleaseGraceMax = std::chrono::milliseconds(100);

}  // namespace

// --- what is next ---

LockWork InodeLocks::Next(const Now& now, Answers& answers) {
  while (!stalled_ && !must_read_) {
    const auto first = std::find_if(waiting_.begin(), waiting_.end(), [&](const LockOperation& wait) {
      return known_.Conflict(wait.lock) == nullptr && !known_.MustLetPass(wait.lock, wait.since);
    });
    if (first == waiting_.end()) break;
    if (std::optional<LockWork> work = Take(*first, first->ticket, answers)) return *std::move(work);
  }
  while (is_asked()) {
    if (must_read_ && Looks()) return Read();  // what frees is written without a look
    if (std::optional<LockWork> work = Begin(now, answers)) return *std::move(work);
  }
  if (must_read_ && waits() && !stalled_) return Read();
  return behind_ && !stalled_ ? Write() : LockWork();
}

bool InodeLocks::Looks() const {
  if (!is_asked()) return false;
  const Kind kind = queue_.front().kind;
  return kind == Kind::kTry || kind == Kind::kWait || kind == Kind::kTest;
}

std::optional<LockWork> InodeLocks::Begin(const Now& now, Answers& answers) {
  LockOperation& operation = queue_.front();
  const FileLock& lock = operation.lock;
  switch (operation.kind) {
    case Kind::kTry:
    case Kind::kWait: return BeginLock(now, answers);
    case Kind::kUnlock: behind_ |= known_.own.Unset(lock.owner, lock.start, lock.last); return End({}, answers);
    case Kind::kReleaseHandle: behind_ |= known_.own.UnsetHandle(lock.handle); return End({}, answers);
    case Kind::kCancel: {
      const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const LockOperation& wait) { return wait.ticket == operation.ticket; });
      if (found != waiting_.end()) {
        operation.done = std::move(found->done);
        waiting_.erase(found);
        behind_ = true;
      }
      return End({LockOutcome::kInterrupted, {}}, answers);
    }
    case Kind::kTest: {
      if (!is_fresh_) return Read();
      LockAnswer answer;
      if (const FileLock* holder = known_.Conflict(lock)) answer.holder = *holder;
      answers.emplace_back(TakeFirst().done, answer);
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<LockWork> InodeLocks::BeginLock(const Now& now, Answers& answers) {
  LockOperation& operation = queue_.front();
  const bool may_wait = operation.kind == Kind::kWait;
  if (may_wait && now.ending) return End({LockOutcome::kInterrupted, {}}, answers);
  std::optional<FileLock> holder;
  if (const FileLock* found = known_.Conflict(operation.lock)) holder = *found;
  if (!holder && !(may_wait && known_.MustLetPass(operation.lock, operation.since))) return Take(operation, 0, answers);
  // Who refuses has looked at the others' records, unless the lock in the way is of this host. Who waits has, too: it
  // is told of the changes from there on.
  const bool is_own = holder && holder->owner.node == self_;
  if (!is_fresh_ && (may_wait || !is_own)) return Read();
  // flock(2): a conversion removes the old lock first, and does not bring it back.
  if (operation.lock.owner.kind == LockKind::kFlock) {
    behind_ |= known_.own.Unset(operation.lock.owner, 0, kLockOffsetMax);
  }
  if (may_wait) return BeginWait(now, answers);
  if (is_own && (operation.tries == 0 || (operation.tries == 1 && now.late > kReleaseGrace))) {
    LockWork work{Step::kRest};
    work.rest = std::min(operation.tries == 0 ? kReleaseGrace : 10 * now.late, kReleaseGraceMax);
    ++operation.tries;
    queue_.push_back(TakeFirst());
    return work;
  }
  return End({LockOutcome::kWouldBlock, holder}, answers);
}

std::optional<LockWork> InodeLocks::BeginWait(const Now& now, Answers& answers) {
  const FileLock& lock = queue_.front().lock;
  if (lock.owner.kind == LockKind::kRecord && now.closes_cycle(lock)) return End({LockOutcome::kDeadlock, {}}, answers);
  LockOperation operation = TakeFirst();
  if (held().size() + waiting_.size() >= LockTable::kLocksMax) {
    const Error full = MakeError(ErrorCode::kTooLarge, "too many wait for locks on one file");
    answers.emplace_back(std::move(operation.done), full);
    return std::nullopt;
  }
  operation.since = known_.as_of();
  const LockTicket ticket = operation.ticket;
  waiting_.push_back(std::move(operation));
  behind_ = true;
  LockWork work = Write();
  work.ticket = ticket;
  return work;
}

std::optional<LockWork> InodeLocks::End(LockAnswer answer, Answers& answers) {
  LockOperation operation = TakeFirst();
  if (!behind_) {
    answers.emplace_back(std::move(operation.done), answer);
    return std::nullopt;
  }
  LockWork work = Write();
  work.operation = std::move(operation);
  work.answer = answer;
  return work;
}

std::optional<LockWork> InodeLocks::Take(const LockOperation& operation, LockTicket ticket, Answers& answers) {
  LockWork work = Write(ticket);
  if (const Status set = work.record.held.Set(operation.lock); !set.ok()) {
    if (ticket == 0) {
      answers.emplace_back(TakeFirst().done, set.error());
    } else {
      behind_ |= EndWait(ticket, set.error(), answers);
    }
    return std::nullopt;
  }
  work.takes = true;
  work.as_of = known_.as_of();
  work.ticket = ticket;
  if (ticket == 0) work.operation = TakeFirst();
  return work;
}

LockWork InodeLocks::Read() const {
  LockWork work{Step::kRead};
  work.is_for_first = Looks();
  work.losses = losses_;
  return work;
}

LockWork InodeLocks::Write(LockTicket without) const {
  LockWork work{Step::kCommit};
  work.record.held = known_.own;
  for (const LockOperation& wait : waiting_) {
    if (wait.ticket != without) work.record.waiting.push_back({wait.since, wait.lock});
  }
  return work;
}

LockOperation InodeLocks::TakeFirst() {
  LockOperation first = std::move(queue_.front());
  queue_.pop_front();
  is_fresh_ = false;
  return first;
}

bool InodeLocks::EndWait(LockTicket ticket, Result<LockAnswer> answer, Answers& answers) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const LockOperation& wait) { return wait.ticket == ticket; });
  if (found == waiting_.end()) return false;
  answers.emplace_back(std::move(found->done), std::move(answer));
  waiting_.erase(found);
  return true;
}

// --- how it ended ---

void InodeLocks::NoteRead(const LockWork& work, const Result<kv::KvRange>& records, Answers& answers) {
  if (work.losses != losses_) return;  // it may be older than what was lost: once more
  const Status status = records.ok() ? known_.Load(*records) : Status(records.error());
  must_read_ = !status.ok();
  if (status.ok()) {
    is_fresh_ = work.is_for_first;
  } else if (status.error().code == ErrorCode::kConflict) {
    return;  // read once more
  } else if (work.is_for_first && Looks()) {
    LockOperation operation = TakeFirst();
    answers.emplace_back(std::move(operation.done), AnswerWithout(operation, status.error()));
  } else {
    stalled_ = true;
  }
}

void InodeLocks::NoteCommitted(LockWork& work, Answers& answers) {
  known_.own = std::move(work.record.held);
  behind_ = stalled_ = false;
  if (work.operation) answers.emplace_back(std::move(work.operation->done), work.answer);
  if (work.ticket != 0 && work.takes) EndWait(work.ticket, LockAnswer{}, answers);
}

void InodeLocks::NoteRefused(LockWork& work, const Error& error, Answers& answers) {
  // Another host's record has changed. kNotFound: the lease that the record was to go with has ended.
  if (error.code == ErrorCode::kConflict || error.code == ErrorCode::kNotFound) {
    must_read_ = true;
    if (work.operation) queue_.push_front(*std::move(work.operation));
    return;
  }
  if (work.operation) answers.emplace_back(std::move(work.operation->done), AnswerWithout(*work.operation, error));
  // Who waits already goes on until there is room.
  const bool goes_on = work.takes && error.code == ErrorCode::kNoSpace;
  if (work.ticket != 0 && !goes_on) behind_ |= EndWait(work.ticket, error, answers);
  stalled_ = behind_ || waits();
}

void InodeLocks::NoteChanges(const std::vector<kv::KvEvent>& events, uint64_t revision) {
  if (!known_.Apply(events, revision).ok()) NoteChangesLost();  // what is wrong tells the next read
}

void InodeLocks::NoteChangesLost() {
  known_.ForgetOthers();
  must_read_ = true;
  losses_++;
}

void InodeLocks::EndWaits(const Result<LockAnswer>& answer, Answers& answers) {
  for (LockOperation& wait : waiting_) answers.emplace_back(std::move(wait.done), answer);
  waiting_.clear();
}

void InodeLocks::Forget(const Error& why, Answers& answers) {
  for (LockOperation& operation : queue_)
    answers.emplace_back(std::move(operation.done), AnswerWithout(operation, why));
  queue_.clear();
  EndWaits(why, answers);
  known_ = KnownLocks(self_);
  must_read_ = is_fresh_ = behind_ = stalled_ = false;
}

Result<LockAnswer> InodeLocks::AnswerWithout(const LockOperation& operation, const Error& error) {
  if (operation.kind == Kind::kCancel) return LockAnswer{LockOutcome::kInterrupted, {}};
  const bool frees = operation.kind == Kind::kUnlock || operation.kind == Kind::kReleaseHandle;
  if (frees && error.code == ErrorCode::kStale) return LockAnswer{};
  return error;
}

}  // namespace cairnfs::coherence
