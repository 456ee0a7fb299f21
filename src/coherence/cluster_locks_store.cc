// ClusterLocks: the task of an inode, which reads, writes and watches the records of its locks.
//
// A transaction whose answer was lost is committed again under the same operation id, which finds out whether it ran
// (docs/decisions/lost-answers.md). Only then does anything follow for that inode.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "coherence/cluster_locks.h"

namespace cairnfs::coherence {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr milliseconds kPauseMin{20}, kPauseMax{1000};
constexpr milliseconds kWatchRetry{100};  // after a watch that could not be made
// Whose locks were waited for will be so again, and a new watch is slow to begin: etcd takes up to 100 ms.
constexpr size_t kWatchesKept = 4;
constexpr std::chrono::minutes kToldFullAgain{1};
// Of one file at a time, however many are stalled: the first that goes through brings the others.
constexpr milliseconds kStalledRetry{1000};
// From a look for a deadlock whose records changed before the wait was refused to the next one.
constexpr milliseconds kLookRestMin{10}, kLookRestMax{1000};

// How late it ended.
nanoseconds Rest(const Context& context, nanoseconds length) {
  const auto begin = Clock::Now();
  if (!context.Sleep(length)) return {};
  return Clock::Now() - begin - length;
}

}  // namespace

void ClusterLocks::Serve(InodeId inode) {
  nanoseconds late{0};  // the end of the last rest
  for (;;) {
    if (TendWatch(inode)) continue;
    uint64_t epoch;
    LockWork work = NextWork(inode, std::exchange(late, nanoseconds(0)), epoch);
    switch (work.step) {
      case LockWork::Step::kIdle: return;
      case LockWork::Step::kRead: Read(inode, epoch, work); break;
      case LockWork::Step::kFindCycle: FindCycle(inode, epoch, work); break;
      case LockWork::Step::kCommit: Commit(inode, epoch, work); break;
      case LockWork::Step::kRest: late = Rest(context_, work.rest); break;
    }
  }
}

LockWork ClusterLocks::NextWork(InodeId inode, nanoseconds late, uint64_t& epoch) {
  Answers answers;
  LockWork work;
  {
    MutexLock lock(mutex_);
    Inode& state = StateOf(inode);
    const auto is_holder = [this](const LockOwner& owner) REQUIRES_LOCK(mutex_) { return holders_.Contains(owner); };
    work = state.locks.Next({context_.IsStopped(), late, is_holder}, answers);
    holders_.Count(state.locks.held(), state.holders);
    epoch = epoch_;
    if (work.step == LockWork::Step::kIdle) {
      state.running = false;
      const bool is_empty = state.locks.held().empty() && !state.locks.waits() && !state.locks.is_behind();
      if (is_empty && state.watch == nullptr) inodes_.erase(inode);
    }
    TellFull(inode, answers);
  }
  Send(answers);
  return work;
}

void ClusterLocks::TellFull(InodeId inode, const Answers& answers) {
  for (const auto& [done, answer] : answers) {
    if (answer.ok() || answer.error().code != ErrorCode::kTooLarge) continue;
    const auto now = Clock::Now();
    if (told_full_at_ && now - *told_full_at_ < kToldFullAgain) continue;
    told_full_at_ = now;
    spdlog::warn("inode {}: a lock is refused: {}", inode.value, answer.error().message);
  }
}

// --- transactions ---

Result<cluster::Membership::Session> ClusterLocks::SessionOf(uint64_t epoch) const {
  // In this order: a session that was made anew is seen only after ForgetAll.
  Result<cluster::Membership::Session> session = parts_.membership.session();
  MutexLock lock(mutex_);
  if (epoch_ != epoch) return LocksLost();
  return session;
}

bool ClusterLocks::Pause(uint64_t epoch, unsigned failures) {
  const Context pause = context_.WithTimeout(std::min(kPauseMin * (1 << std::min(failures, 10U)), kPauseMax));
  MutexLock lock(mutex_);
  pause.Wait(mutex_, changed_, [&] {
    mutex_.AssertHeld();
    return epoch_ != epoch;
  });
  return !context_.IsStopped();
}

Result<kv::KvRange> ClusterLocks::ReadRecords(const std::string& prefix, uint64_t epoch) {
  for (unsigned failures = 0;;) {
    Result<kv::KvRange> records = parts_.fenced.Range({}, prefix, kv::PrefixEnd(prefix), 0);
    const bool is_away = !records.ok() && records.error().code == ErrorCode::kUnavailable;
    if (!is_away || !Pause(epoch, failures++)) return records;
  }
}

void ClusterLocks::FindCycle(InodeId inode, uint64_t epoch, const LockWork& work) {
  const Result<kv::KvRange> records = ReadRecords(AllLocksBegin(), epoch);
  if (!records.ok()) spdlog::warn("deadlocks of locks cannot be looked for: {}", records.error().message);
  LockCycle cycle;
  if (records.ok()) cycle = FindLockCycle(records->entries, inode, work.wanted);
  MutexLock lock(mutex_);
  if (epoch_ == epoch) StateOf(inode).locks.NoteCycle(work, std::move(cycle));
}

void ClusterLocks::Read(InodeId inode, uint64_t epoch, const LockWork& work) {
  const Result<kv::KvRange> records = ReadRecords(LocksBegin(inode), epoch);
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (epoch_ != epoch) return;
    Inode& state = StateOf(inode);
    state.locks.NoteRead(work, records, answers);
    if (state.locks.is_stalled()) RetryLater(inode, records.ok() ? Error() : records.error());
  }
  Send(answers);
}

Status ClusterLocks::TryCommit(InodeId inode, uint64_t epoch, const LockWork& work) {
  const std::string begin = LocksBegin(inode), key = LocksKey(inode, parts_.membership.self());
  kv::Transaction transaction;
  for (unsigned failures = 0;;) {
    const Result<cluster::Membership::Session> session = SessionOf(epoch);
    Status status = session.ok() ? Status() : Status(session.error());
    if (session.ok() && transaction.writes.empty()) {
      // The session beside the fence's own compare of it: the locks are of this one, not of one that may follow it.
      transaction.IfRevision(session->key, session->revision);
      if (work.takes) {
        transaction.IfRangeUnchanged(begin, key, work.as_of);
        transaction.IfRangeUnchanged(key + std::string(1, '\0'), kv::PrefixEnd(begin), work.as_of);
      }
      for (const LockCycleRecord& each : work.cycle) transaction.IfRevision(each.key, each.revision);
      if (work.record.empty()) {
        transaction.Delete(key);
      } else {
        transaction.writes.push_back({key, work.record.Encode(), session->lease});
      }
      transaction.operation_id =
          fmt::format("locks/{}/{}/{}", parts_.membership.self().ToHex(), session->revision, ++commits_);
    }
    if (session.ok()) {
      const Result<uint64_t> committed = parts_.fenced.Commit({}, transaction);
      status = committed.ok() ? Status() : Status(committed.error());
    }
    if (status.ok() || status.error().code != ErrorCode::kUnavailable || !Pause(epoch, failures++)) return status;
  }
}

void ClusterLocks::Commit(InodeId inode, uint64_t epoch, LockWork& work) {
  const Status status = TryCommit(inode, epoch, work);
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (epoch_ != epoch) {
      if (auto& lost = work.operation) {
        answers.emplace_back(std::move(lost->done), InodeLocks::AnswerWithout(*lost, LocksLost()));
      }
    } else if (Inode& state = StateOf(inode); status.ok()) {
      const bool was_stalled = state.locks.is_stalled();
      state.locks.NoteCommitted(work, answers);
      holders_.Count(state.locks.held(), state.holders);
      if (was_stalled) WakeStalled(stalled_.size());
    } else {
      const bool rested = state.locks.rests_from_looks();
      state.locks.NoteRefused(work, status.error(), answers);
      if (state.locks.is_stalled()) RetryLater(inode, status.error());
      if (!rested && state.locks.rests_from_looks()) RestFromLooks(inode, state.locks.vain_looks());
    }
  }
  Send(answers);
}

// --- what the store refused ---

void ClusterLocks::RetryLater(InodeId inode, const Error& error) {
  if (stalled_.empty()) spdlog::warn("locks cannot be written for now, and are tried again: {}", error.message);
  if (std::find(stalled_.begin(), stalled_.end(), inode) == stalled_.end()) stalled_.push_back(inode);
  if (!std::exchange(retry_posted_, true)) tasks_.Post([this] { RetryStalled(); });
}

void ClusterLocks::RetryStalled() {
  const bool is_ending = !context_.Sleep(kStalledRetry);
  MutexLock lock(mutex_);
  retry_posted_ = false;
  if (is_ending) return;
  WakeStalled(1);
  if (!stalled_.empty() && !std::exchange(retry_posted_, true)) tasks_.Post([this] { RetryStalled(); });
}

void ClusterLocks::WakeStalled(size_t count) {
  for (; count > 0 && !stalled_.empty(); --count) {
    const auto found = inodes_.find(stalled_.front());
    stalled_.pop_front();
    if (found == inodes_.end()) continue;
    found->second.locks.GoOn();
    Wake(found->first, found->second);
  }
}

// --- rests from looks for deadlocks ---

void ClusterLocks::RestFromLooks(InodeId inode, unsigned vain_looks) {
  const auto rest = std::min(kLookRestMin * (1 << std::min(vain_looks - 1, 10U)), kLookRestMax);
  resting_.emplace(Clock::Now() + rest, inode);
  changed_.NotifyAll();
  if (!std::exchange(rests_posted_, true)) tasks_.Post([this] { EndRests(); });
}

void ClusterLocks::EndRests() {
  MutexLock lock(mutex_);
  while (!resting_.empty() && !context_.IsStopped()) {
    const auto due = resting_.begin()->first;
    context_.WithDeadline(due).Wait(mutex_, changed_, [&] {
      mutex_.AssertHeld();
      return resting_.empty() || resting_.begin()->first < due;
    });
    while (!resting_.empty() && resting_.begin()->first <= Clock::Now()) {
      const auto found = inodes_.find(resting_.extract(resting_.begin()).mapped());
      if (found == inodes_.end()) continue;
      found->second.locks.LookAgain();
      Wake(found->first, found->second);
    }
  }
  rests_posted_ = false;
}

// --- watches ---

bool ClusterLocks::TendWatch(InodeId inode) {
  std::unique_ptr<kv::KvWatch> ended;
  MutexLock lock(mutex_);
  Inode& state = StateOf(inode);
  const bool is_watched = state.watch != nullptr, waits = state.locks.waits();
  if (is_watched && !waits && (state.ends_watch || context_.IsStopped())) {
    ended = std::move(state.watch);
    lock.Unlock();  // a callback may wait for the mutex, and the watch for the callback
    return true;
  }
  if (is_watched || !waits || (state.watch_failed && state.locks.is_asked())) return false;
  const uint64_t after = state.locks.as_of();
  lock.Unlock();
  return StartWatch(inode, after);
}

bool ClusterLocks::StartWatch(InodeId inode, uint64_t after) {
  const std::string begin = LocksBegin(inode);
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this, inode](std::vector<kv::KvEvent> events, uint64_t revision) {
    OnChanges(inode, std::move(events), revision);
  };
  callbacks.lost = [this, inode](uint64_t revision) { OnChanges(inode, std::nullopt, revision); };
  auto watch = parts_.shared.Watch(context_, begin, kv::PrefixEnd(begin), after, std::move(callbacks));
  {
    MutexLock lock(mutex_);
    Inode& state = StateOf(inode);
    state.watch_failed = !watch.ok();
    if (watch.ok()) {
      state.watch = std::move(*watch);
      state.ends_watch = false;
      KeepWatch(inode);
      return true;
    }
  }
  // Until there is one, a look now and then tells the same.
  spdlog::warn("locks of inode {} cannot be watched: {}", inode.value, watch.error().message);
  static_cast<void>(context_.Sleep(kWatchRetry));
  OnChanges(inode, std::nullopt, 0);
  return false;
}

void ClusterLocks::KeepWatch(InodeId inode) {
  watched_.push_back(inode);
  if (watched_.size() <= kWatchesKept) return;
  const auto oldest = inodes_.find(watched_.front());
  watched_.pop_front();
  if (oldest == inodes_.end()) return;
  oldest->second.ends_watch = true;
  Wake(oldest->first, oldest->second);
}

void ClusterLocks::OnChanges(InodeId inode, const std::optional<std::vector<kv::KvEvent>>& events, uint64_t revision) {
  MutexLock lock(mutex_);
  const auto found = inodes_.find(inode);
  if (found == inodes_.end()) return;
  Inode& state = found->second;
  if (events) {
    state.locks.NoteChanges(*events, revision);
  } else {
    state.locks.NoteChangesLost();
  }
  if (state.locks.waits()) Wake(inode, state);
}

}  // namespace cairnfs::coherence
