// ClusterLocks: what the store has no room for. It refuses then what would free as well, of which nobody may hear: a
// process that ended does not ask again, and a lock that stays keeps everybody out. So each host tries again what frees
// until there is room, the mount ends, or the session does, and the locks with it.
//
// What may have run, because an answer was lost before the store had no room, is tried again too, and not answered
// before: who was told that there is no lock would never free the one that is there.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "coherence/locks.h"

namespace cairnfs::coherence {
namespace {

// Of one file at a time, however many wait: the first that goes through brings the others.
constexpr auto kRetryPause = std::chrono::seconds(1);
// Of a file. A process that unlocks byte by byte makes more; what it had then goes when it closes the file.
constexpr size_t kRefusedMax = LockTable::kLocksMax;

}  // namespace

bool ClusterLocks::Frees(const Operation& operation) {
  using Kind = Operation::Kind;
  switch (operation.kind) {
    case Kind::kUnlock:
    case Kind::kReleaseHandle:
    case Kind::kCancel:
    case Kind::kSweep: return true;
    case Kind::kTry:
    case Kind::kWait:
    case Kind::kTest: return false;
  }
  return false;
}

bool ClusterLocks::MayTake(const Operation& operation) {
  return operation.in_doubt && (operation.kind == Operation::Kind::kTry || operation.kind == Operation::Kind::kWait);
}

bool ClusterLocks::Absorb(Operation& kept, const Operation& other) {
  using Kind = Operation::Kind;
  if (kept.kind != other.kind) return false;
  if (kept.kind == Kind::kSweep) return true;
  if (kept.kind == Kind::kCancel) return kept.ticket == other.ticket;
  if (kept.kind == Kind::kReleaseHandle) return kept.lock.handle == other.lock.handle;
  const bool meet = kept.lock.start <= other.lock.last + 1 && other.lock.start <= kept.lock.last + 1;
  if (kept.lock.owner != other.lock.owner || !meet) return false;
  kept.lock.start = std::min(kept.lock.start, other.lock.start);
  kept.lock.last = std::max(kept.lock.last, other.lock.last);
  return true;
}

bool ClusterLocks::IsTriedAgain(const Batch& batch, const Operation& operation) const {
  if (batch.status.ok() || batch.status.error().code != ErrorCode::kNoSpace || ending_) return false;
  return Frees(operation) || MayTake(operation);
}

void ClusterLocks::KeepRefused(Operation operation, const Error& error, Inode& state, Told& told) {
  if (Frees(operation)) {
    told.emplace_back(std::exchange(operation.done, {}), error);
    // In whatever order they come, those that free leave the same.
    for (auto kept = state.refused.rbegin(); kept != state.refused.rend() && Frees(*kept); ++kept) {
      if (Absorb(*kept, operation)) return;
    }
    const bool is_part = operation.kind == Operation::Kind::kUnlock &&
                         (operation.lock.start > 0 || operation.lock.last < kLockOffsetMax);
    if (is_part && state.refused.size() >= kRefusedMax) return;
  }
  state.refused.push_back(std::move(operation));
}

void ClusterLocks::NoteRefused(const Batch& batch, Inode& state) {
  const bool was_refused = refused_.erase(batch.inode) > 0;
  if (!state.refused.empty()) {
    if (refused_.empty() && !was_refused) {
      spdlog::warn("locks cannot be freed for now, and are tried again: {}", batch.status.error().message);
    }
    state.answer_lost = batch.answer_lost;
    refused_.insert(batch.inode);
    PostRetry();
  } else if (was_refused && batch.status.ok()) {
    for (const InodeId inode : refused_) RetryNow(inode);
  }
}

// Not that there is no lock, where there may be one.
Result<ClusterLocks::Answer> ClusterLocks::AnswerAtTheEnd(const Operation& operation) {
  if (operation.kind == Operation::Kind::kWait) return Answer{Outcome::kInterrupted, {}};
  return MakeError(ErrorCode::kUnavailable, "the mount ends");
}

// What was to be freed goes with the session, which ends next.
void ClusterLocks::EndRefused(Inode& state, Told& told) {
  for (Operation& operation : state.refused) {
    if (operation.kind == Operation::Kind::kWait) {
      tickets_.erase(operation.ticket);
      DropEdge(operation.lock.owner.number, operation.ticket);
    }
    told.emplace_back(std::move(operation.done), AnswerAtTheEnd(operation));
  }
  state.refused.clear();
  state.retry_due = state.answer_lost = false;
}

void ClusterLocks::PostRetry() {
  if (std::exchange(retry_posted_, true)) return;
  tasks_.Post([this] { RunRetry(); });
}

void ClusterLocks::RunRetry() {
  const auto until = std::chrono::steady_clock::now() + kRetryPause;
  MutexLock lock(mutex_);
  while (!ending_) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  retry_posted_ = false;
  if (ending_ || refused_.empty()) return;
  auto next = refused_.upper_bound(retried_last_);
  if (next == refused_.end()) next = refused_.begin();
  retried_last_ = *next;
  RetryNow(*next);
  PostRetry();
}

void ClusterLocks::RetryNow(InodeId inode) {
  Inode& state = inodes_[inode];
  if (state.running) return;  // with them
  state.retry_due = true;
  Wake(inode, state);
}

}  // namespace cairnfs::coherence
