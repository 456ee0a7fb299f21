// ClusterLocks: reading, writing and watching the records of an inode.
//
// A transaction whose answer was lost is committed again under the same operation id, which finds out whether it ran
// (docs/decisions/lost-answers.md). Only then does anything follow for that inode.
#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "coherence/cluster_locks.h"

namespace cairnfs::coherence {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPauseMin{20}, kPauseMax{1000};
constexpr milliseconds kWatchRetry{100};  // after a watch that could not be made
// Whose locks were waited for will be so again, and a new watch is slow to begin: etcd takes up to 100 ms.
constexpr size_t kWatchesKept = 4;
// Of one file at a time, however many are stalled: the first that goes through brings the others.
constexpr milliseconds kStalledRetry{1000};

}  // namespace

// --- transactions ---

Result<cluster::Membership::Session> ClusterLocks::SessionOf(uint64_t epoch) const {
  // In this order: a session that was made anew is seen only after ForgetAll.
  Result<cluster::Membership::Session> session = parts_.membership.session();
  MutexLock lock(mutex_);
  if (epoch_ != epoch) return LocksLost();
  return session;
}

bool ClusterLocks::Pause(uint64_t epoch, unsigned failures) {
  const auto until = Clock::Now() + std::min(kPauseMin * (1 << std::min(failures, 10U)), kPauseMax);
  MutexLock lock(mutex_);
  while (!ending_ && epoch_ == epoch) {
    const auto left = until - Clock::Now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  return !ending_;
}

void ClusterLocks::Read(InodeId inode, const Work& work) {
  const std::string begin = LocksBegin(inode);
  Result<kv::KvRange> range = parts_.fenced.Range(begin, kv::PrefixEnd(begin), 0);
  for (unsigned failures = 0; !range.ok() && range.error().code == ErrorCode::kUnavailable;) {
    if (!Pause(work.epoch, failures++)) break;
    range = parts_.fenced.Range(begin, kv::PrefixEnd(begin), 0);
  }
  Told told;
  {
    MutexLock lock(mutex_);
    if (epoch_ != work.epoch) return;
    Inode& state = StateOf(inode);
    const Status status = range.ok() ? state.known.Load(*range) : Status(range.error());
    state.must_read = !status.ok();
    if (!status.ok() && status.error().code == ErrorCode::kConflict) return;
    if (status.ok()) {
      state.is_fresh = work.is_for_first;
    } else if (!state.queue.empty()) {
      Operation operation = TakeFirst(state);
      told.emplace_back(std::move(operation.done), AnswerWithout(operation, status.error()));
    } else {
      Stall(inode, state, status.error());
    }
  }
  Tell(told);
}

Status ClusterLocks::TryCommit(InodeId inode, const Work& work) {
  const std::string begin = LocksBegin(inode), key = LocksKey(inode, parts_.membership.self());
  kv::Transaction transaction;
  for (unsigned failures = 0;;) {
    const Result<cluster::Membership::Session> session = SessionOf(work.epoch);
    Status status = session.ok() ? Status() : Status(session.error());
    if (session.ok() && transaction.writes.empty()) {
      // The session beside the fence's own compare of it: the locks are of this one, not of one that may follow it.
      transaction.IfRevision(session->key, session->revision);
      if (work.takes) {
        transaction.IfRangeUnchanged(begin, key, work.as_of);
        transaction.IfRangeUnchanged(key + std::string(1, '\0'), kv::PrefixEnd(begin), work.as_of);
      }
      if (work.record.empty()) {
        transaction.Delete(key);
      } else {
        transaction.writes.push_back({key, work.record.Encode(), session->lease});
      }
      transaction.operation_id =
          fmt::format("locks/{}/{}/{}", parts_.membership.self().ToHex(), session->revision, ++commits_);
    }
    if (session.ok()) {
      const Result<uint64_t> committed = parts_.fenced.Commit(transaction);
      status = committed.ok() ? Status() : Status(committed.error());
    }
    if (status.ok() || status.error().code != ErrorCode::kUnavailable || !Pause(work.epoch, failures++)) return status;
  }
}

void ClusterLocks::Commit(InodeId inode, Work& work) {
  const Status status = TryCommit(inode, work);
  Told told;
  {
    MutexLock lock(mutex_);
    if (epoch_ != work.epoch) {
      if (work.operation) {
        told.emplace_back(std::move(work.operation->done), AnswerWithout(*work.operation, LocksLost()));
      }
    } else if (status.ok()) {
      Inode& state = StateOf(inode);
      state.known.own = std::move(work.record.held);
      state.behind = false;
      if (work.operation) told.emplace_back(std::move(work.operation->done), std::move(work.answer));
      if (work.ticket != 0 && work.takes) EndWait(state, work.ticket, Answer{}, told);
      if (std::exchange(state.stalled, false)) WakeStalled(stalled_.size());
    } else {
      NoteRefusal(inode, work, status.error(), told);
    }
  }
  Tell(told);
}

void ClusterLocks::NoteRefusal(InodeId inode, Work& work, const Error& error, Told& told) {
  Inode& state = StateOf(inode);
  // Another host's record has changed. kNotFound: the lease that the record was to go with has ended.
  if (error.code == ErrorCode::kConflict || error.code == ErrorCode::kNotFound) {
    state.must_read = true;
    if (work.operation) state.queue.push_front(*std::move(work.operation));
    return;
  }
  if (work.operation) {
    told.emplace_back(std::move(work.operation->done), AnswerWithout(*work.operation, error));
  }
  // Who waits already goes on until there is room.
  const bool goes_on = work.takes && error.code == ErrorCode::kNoSpace;
  if (work.ticket != 0 && !goes_on) state.behind |= EndWait(state, work.ticket, error, told);
  if (state.behind || !state.waiting.empty()) Stall(inode, state, error);
}

// --- what the store refused ---

void ClusterLocks::Stall(InodeId inode, Inode& state, const Error& error) {
  if (std::exchange(state.stalled, true)) return;
  if (stalled_.empty()) spdlog::warn("locks cannot be written for now, and are tried again: {}", error.message);
  stalled_.push_back(inode);
  if (!std::exchange(retry_posted_, true)) tasks_.Post([this] { RetryStalled(); });
}

void ClusterLocks::WakeStalled(size_t count) {
  for (; count > 0 && !stalled_.empty(); --count) {
    const InodeId inode = stalled_.front();
    stalled_.pop_front();
    auto found = inodes_.find(inode);
    if (found == inodes_.end()) continue;
    found->second.stalled = false;
    Wake(inode, found->second);
  }
}

void ClusterLocks::RetryStalled() {
  const auto until = Clock::Now() + kStalledRetry;
  MutexLock lock(mutex_);
  while (!ending_) {
    const auto left = until - Clock::Now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  retry_posted_ = false;
  if (ending_ || stalled_.empty()) return;
  WakeStalled(1);
  if (!stalled_.empty() && !std::exchange(retry_posted_, true)) tasks_.Post([this] { RetryStalled(); });
}

// --- watches ---

void ClusterLocks::StartWatch(InodeId inode) {
  uint64_t after;
  {
    MutexLock lock(mutex_);
    after = StateOf(inode).known.as_of();
  }
  const std::string begin = LocksBegin(inode);
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this, inode](const std::vector<kv::KvEvent>& events, uint64_t revision) {
    OnChanges(inode, events, revision);
  };
  callbacks.lost = [this, inode](uint64_t) { ReadAnew(inode); };
  auto watch = parts_.shared.Watch(begin, kv::PrefixEnd(begin), after, std::move(callbacks));
  {
    MutexLock lock(mutex_);
    Inode& state = StateOf(inode);
    state.watch_failed = !watch.ok();
    if (watch.ok()) {
      state.watch = std::move(*watch);
      state.ends_watch = false;
      KeepWatch(inode);
      return;
    }
  }
  // Until there is one, a look now and then tells the same.
  spdlog::warn("locks of inode {} cannot be watched: {}", inode.value, watch.error().message);
  Clock::SleepFor(kWatchRetry);
  ReadAnew(inode);
}

void ClusterLocks::KeepWatch(InodeId inode) {
  watched_.push_back(inode);
  if (watched_.size() <= kWatchesKept) return;
  auto oldest = inodes_.find(watched_.front());
  watched_.pop_front();
  if (oldest == inodes_.end()) return;
  oldest->second.ends_watch = true;
  Wake(oldest->first, oldest->second);
}

void ClusterLocks::EndWatch(InodeId inode) {
  std::unique_ptr<kv::KvWatch> watch;
  MutexLock lock(mutex_);
  watch = std::move(StateOf(inode).watch);
  lock.Unlock();  // a callback may wait for the mutex, and the watch for the callback
}

void ClusterLocks::OnChanges(InodeId inode, const std::vector<kv::KvEvent>& events, uint64_t revision) {
  MutexLock lock(mutex_);
  auto found = inodes_.find(inode);
  if (found == inodes_.end()) return;
  Inode& state = found->second;
  if (!state.known.Apply(events, revision).ok()) {
    state.known.ForgetOthers();
    state.must_read = true;  // which tells who asks next
  }
  if (!state.waiting.empty()) Wake(inode, state);
}

void ClusterLocks::ReadAnew(InodeId inode) {
  MutexLock lock(mutex_);
  auto found = inodes_.find(inode);
  if (found == inodes_.end()) return;
  found->second.known.ForgetOthers();
  found->second.must_read = true;
  if (!found->second.waiting.empty()) Wake(inode, found->second);
}

}  // namespace cairnfs::coherence
