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
  if (std::optional<LockWork> work = RefuseDeadlock()) return *std::move(work);
  while (is_asked()) {
    if (must_read_ && Looks()) return Read();  // what frees is written without a look
    if (std::optional<LockWork> work = Begin(now, answers)) return *std::move(work);
  }
  if (must_read_ && waits() && !stalled_) return Read();
  if (behind_ && !stalled_) return Write();
  return RefuseDeadlock().value_or(LockWork());  // the queue had its turn
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
      if (std::optional<LockOperation> wait = TakeWait(operation.ticket)) {
        operation.done = std::move(wait->done);
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
  const bool may_close_cycle = lock.owner.kind == LockKind::kRecord && now.is_holder(lock.owner);
  LockOperation operation = TakeFirst();
  operation.may_close_cycle = may_close_cycle;
  if (held().size() + waiting_.size() >= LockTable::kLocksMax) {
    answers.emplace_back(std::move(operation.done), LockTable::Full());
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

// Other hosts must see the wait before this one looks for cycles: of two waits that begin at once and close a cycle
// together, the one that is written later is seen to close it.
std::optional<LockWork> InodeLocks::RefuseDeadlock() {
  if (behind_ || stalled_) return std::nullopt;
  for (const LockOperation& wait : waiting_) {
    if (wait.cycle.empty()) continue;
    LockWork work = Write(wait.ticket);
    work.ticket = wait.ticket;
    work.cycle = wait.cycle;
    work.answer.outcome = LockOutcome::kDeadlock;
    return work;
  }
  if (rests_from_looks_) return std::nullopt;
  // By turns with the queue: many may wait, each of which looks.
  if (std::exchange(has_looked_, false) && is_asked()) return std::nullopt;
  const auto wait =
      std::find_if(waiting_.begin(), waiting_.end(), [](const LockOperation& each) { return each.may_close_cycle; });
  if (wait == waiting_.end()) return std::nullopt;
  has_looked_ = true;
  LockWork work{Step::kFindCycle};
  work.ticket = wait->ticket;
  work.wanted = wait->lock;
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

LockOperation* InodeLocks::FindWait(LockTicket ticket) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const LockOperation& wait) { return wait.ticket == ticket; });
  return found == waiting_.end() ? nullptr : &*found;
}

std::optional<LockOperation> InodeLocks::TakeWait(LockTicket ticket) {
  LockOperation* const found = FindWait(ticket);
  if (found == nullptr) return std::nullopt;
  LockOperation wait = std::move(*found);
  waiting_.erase(waiting_.begin() + (found - waiting_.data()));
  return wait;
}

bool InodeLocks::EndWait(LockTicket ticket, Result<LockAnswer> answer, Answers& answers) {
  std::optional<LockOperation> wait = TakeWait(ticket);
  if (!wait) return false;
  answers.emplace_back(std::move(wait->done), std::move(answer));
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

void InodeLocks::NoteCycle(const LockWork& work, LockCycle cycle) {
  LockOperation* wait = FindWait(work.ticket);
  if (wait == nullptr) return;
  wait->may_close_cycle = false;
  wait->cycle = std::move(cycle);
  if (wait->cycle.empty()) vain_looks_ = 0;
}

void InodeLocks::NoteCommitted(LockWork& work, Answers& answers) {
  known_.own = std::move(work.record.held);
  behind_ = stalled_ = false;
  if (work.operation) answers.emplace_back(std::move(work.operation->done), work.answer);
  if (!work.cycle.empty()) vain_looks_ = 0;
  const bool is_over = work.takes || !work.cycle.empty();
  if (work.ticket != 0 && is_over) EndWait(work.ticket, work.answer, answers);
}

void InodeLocks::NoteRefused(LockWork& work, const Error& error, Answers& answers) {
  if (LockOperation* wait = work.cycle.empty() ? nullptr : FindWait(work.ticket)) {
    wait->cycle.clear();  // it may stand no more
    wait->may_close_cycle = true;
    if (error.code == ErrorCode::kConflict) {
      ++vain_looks_;
      rests_from_looks_ = true;
      return;
    }
  }
  // Another host's record has changed. kNotFound: the lease that the record was to go with has ended.
  if (error.code == ErrorCode::kConflict || error.code == ErrorCode::kNotFound) {
    must_read_ = true;
    if (work.operation) queue_.push_front(*std::move(work.operation));
    return;
  }
  if (work.operation) answers.emplace_back(std::move(work.operation->done), AnswerWithout(*work.operation, error));
  // Who waits already goes on until there is room.
  const bool goes_on = (work.takes || !work.cycle.empty()) && error.code == ErrorCode::kNoSpace;
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
  must_read_ = is_fresh_ = behind_ = stalled_ = rests_from_looks_ = false;
  vain_looks_ = 0;
}

Result<LockAnswer> InodeLocks::AnswerWithout(const LockOperation& operation, const Error& error) {
  if (operation.kind == Kind::kCancel) return LockAnswer{LockOutcome::kInterrupted, {}};
  const bool frees = operation.kind == Kind::kUnlock || operation.kind == Kind::kReleaseHandle;
  if (frees && error.code == ErrorCode::kStale) return LockAnswer{};
  return error;
}

}  // namespace cairnfs::coherence
