#include "coherence/cluster_locks.h"

#include <algorithm>

namespace cairnfs::coherence {

using Kind = LockOperation::Kind;

ClusterLocks::ClusterLocks(const Parts& parts, const Options& options)
    : parts_(parts), tasks_("locks", options.threads) {}

ClusterLocks::~ClusterLocks() { EndWaits(); }  // and tasks_ ends the watches

// --- calls ---

void ClusterLocks::TryLock(const Request& request, Done<Outcome> done) {
  Ask(request.inode, {Kind::kTry, LockOf(request), 0, [done = std::move(done)](Result<LockAnswer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
}

ClusterLocks::Ticket ClusterLocks::Lock(const Request& request, Done<Outcome> done) {
  const Ticket ticket = next_ticket_.fetch_add(1);
  Ask(request.inode, {Kind::kWait, LockOf(request), ticket, [done = std::move(done)](Result<LockAnswer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
  return ticket;
}

void ClusterLocks::Cancel(InodeId inode, Ticket ticket) {
  MutexLock lock(mutex_);
  if (inodes_.contains(inode)) AskIn(inode, {Kind::kCancel, {}, ticket, {}});
}

void ClusterLocks::Unlock(const Request& request, const Done<void>& done) {
  const FileLock freed = LockOf(request);
  {
    MutexLock lock(mutex_);
    if (MayHold(request.inode, [&](const FileLock& held) { return held.owner == freed.owner; })) {
      return AskIn(request.inode, {Kind::kUnlock, freed, 0, [done](const Result<LockAnswer>& answer) {
                                     done(answer.ok() ? Status() : Status(answer.error()));
                                   }});
    }
  }
  done(Status());
}

void ClusterLocks::Test(const Request& request, Done<std::optional<Holder>> done) {
  const cluster::NodeId self = parts_.membership.self();
  Ask(request.inode,
      {Kind::kTest, LockOf(request), 0, [self, done = std::move(done)](Result<LockAnswer> answer) {
         if (!answer.ok()) return done(answer.error());
         if (!answer->holder) return done(std::optional<Holder>());
         const FileLock& held = *answer->holder;
         done(std::optional(Holder{held.type, held.start, held.last, held.owner.node == self ? held.pid : 0}));
       }});
}

bool ClusterLocks::MayHoldOf(InodeId inode, uint64_t owner) const {
  Request request;
  request.inode = inode;
  request.owner = owner;
  const FileLock freed = LockOf(request);
  MutexLock lock(mutex_);
  return MayHold(inode, [&](const FileLock& held) { return held.owner == freed.owner; });
}

bool ClusterLocks::MayHoldThrough(InodeId inode, uint64_t handle) const {
  MutexLock lock(mutex_);
  return MayHold(inode, LockedThrough(handle));
}

void ClusterLocks::ReleaseHandle(InodeId inode, uint64_t handle) {
  MutexLock lock(mutex_);
  if (!MayHold(inode, LockedThrough(handle))) return;
  Operation operation{Kind::kReleaseHandle, {}, 0, {}};
  operation.lock.handle = handle;
  StateOf(inode).closing.Forget(handle);
  AskIn(inode, std::move(operation));
}

void ClusterLocks::NoteClosed(InodeId inode, uint64_t handle) {
  MutexLock lock(mutex_);
  if (MayHold(inode, LockedThrough(handle))) StateOf(inode).closing.Note(handle);
}

bool ClusterLocks::AwaitsRelease(const Request& request) const {
  const FileLock wanted = LockOf(request);
  MutexLock lock(mutex_);
  const auto found = inodes_.find(request.inode);
  if (found == inodes_.end()) return false;
  return found->second.closing.MayFree(found->second.locks.held(), wanted);
}

void ClusterLocks::ForgetAll() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    ++epoch_;
    changed_.NotifyAll();
    stalled_.clear();
    resting_.clear();
    for (auto& [inode, state] : inodes_) {
      state.locks.Forget(LocksLost(), answers);
      holders_.Count(state.locks.held(), state.holders);
      state.ends_watch = true;
      Wake(inode, state);
    }
  }
  Send(answers);
}

void ClusterLocks::EndWaits() {
  ending_.request_stop();  // first: who begins to wait from here on sees it
  Answers answers;
  {
    MutexLock lock(mutex_);
    for (auto& [inode, state] : inodes_) {
      state.locks.EndWaits(LockAnswer{Outcome::kInterrupted, {}}, answers);
      Wake(inode, state);
    }
  }
  Send(answers);
}

Error ClusterLocks::LocksLost() {
  return MakeError(ErrorCode::kStale, "the host lost its session, and its locks with it");
}

void ClusterLocks::Send(Answers& answers) {
  for (auto& [done, answer] : answers) {
    if (done) done(std::move(answer));
  }
}

// --- inodes ---

ClusterLocks::Inode& ClusterLocks::StateOf(InodeId inode) {
  return inodes_.try_emplace(inode, parts_.membership.self()).first->second;
}

void ClusterLocks::Ask(InodeId inode, Operation operation) {
  MutexLock lock(mutex_);
  AskIn(inode, std::move(operation));
}

void ClusterLocks::AskIn(InodeId inode, Operation operation) {
  Inode& state = StateOf(inode);
  state.locks.Ask(std::move(operation));
  Wake(inode, state);
}

void ClusterLocks::Wake(InodeId inode, Inode& state) {
  if (!std::exchange(state.running, true)) tasks_.Post([this, inode] { Serve(inode); });
}

bool ClusterLocks::MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const {
  const auto found = inodes_.find(inode);
  if (found == inodes_.end()) return false;
  const Inode& state = found->second;
  const std::vector<FileLock>& held = state.locks.held();
  return state.running || state.locks.is_behind() || std::any_of(held.begin(), held.end(), matches);
}

}  // namespace cairnfs::coherence
