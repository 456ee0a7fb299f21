#include "coherence/local_locks.h"

#include <pthread.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/start_thread.h"

namespace cairnfs::coherence {
namespace {

bool IsRecord(const FileLock& lock) { return lock.owner.kind == LockKind::kRecord; }

}  // namespace

LocalLocks::~LocalLocks() {
  EndWaits();
  std::thread ends;
  {
    MutexLock lock(mutex_);
    stops_ = true;
    ends = std::move(ends_);
  }
  must_end_.NotifyAll();
  if (ends.joinable()) ends.join();
}

void LocalLocks::Answers::Send() {
  for (auto& [done, outcome] : outcomes) done(std::move(outcome));
}

// --- what is held ---

bool LocalLocks::MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const {
  if (inode_count_ == 0) return false;
  MutexLock lock(mutex_);
  const auto found = inodes_.find(inode);
  if (found == inodes_.end()) return false;
  const std::vector<FileLock>& held = found->second.held.held();
  return std::any_of(held.begin(), held.end(), matches);
}

bool LocalLocks::MayHoldOf(InodeId inode, uint64_t owner) const {
  return MayHold(inode, [owner](const FileLock& held) { return IsRecord(held) && held.owner.number == owner; });
}

bool LocalLocks::MayHoldThrough(InodeId inode, uint64_t handle) const { return MayHold(inode, LockedThrough(handle)); }

void LocalLocks::ForgetIfEmpty(InodeId inode) {
  if (const auto found = inodes_.find(inode); found != inodes_.end() && found->second.empty()) inodes_.erase(found);
  inode_count_ = inodes_.size();
}

void LocalLocks::Test(const Request& request, Done<std::optional<Holder>> done) {
  const FileLock wanted = LockOf(request, {});
  std::optional<Holder> holder;
  {
    MutexLock lock(mutex_);
    const auto found = inodes_.find(request.inode);
    const FileLock* held = found == inodes_.end() ? nullptr : found->second.held.Conflict(wanted);
    if (held != nullptr) holder = Holder{held->type, held->start, held->last, held->pid};
  }
  done(holder);
}

// --- taking ---

std::optional<Result<LocalLocks::Outcome>> LocalLocks::Take(Inode& state, const FileLock& lock) {
  if (!IsRecord(lock)) {
    const std::vector<FileLock>& held = state.held.held();
    const auto own =
        std::find_if(held.begin(), held.end(), [&](const FileLock& each) { return each.owner == lock.owner; });
    if (own != held.end() && own->type == lock.type) return Outcome::kGranted;
    state.held.Unset(lock.owner, 0, kLockOffsetMax);
  }
  if (state.held.Conflict(lock) != nullptr) return std::nullopt;
  if (state.held.held().size() + state.waits.size() >= LockTable::kLocksMax) return LockTable::Full();
  if (Status set = state.held.Set(lock); !set.ok()) return set.error();
  return Outcome::kGranted;
}

void LocalLocks::TryLock(const Request& request, Done<Outcome> done) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    Inode& state = inodes_[request.inode];
    const FileLock wanted = LockOf(request, {});
    auto taken = Take(state, wanted);
    const bool has_room = state.held.held().size() + state.waits.size() < LockTable::kLocksMax;
    const bool may_wait = !taken && !is_ending_ && has_room && state.closing.MayFree(state.held.held(), wanted);
    if (may_wait && StartEnds().ok()) {
      const Ticket ticket = next_ticket_++;
      state.waits.push_back({.ticket = ticket, .lock = wanted, .done = std::move(done), .is_try = true});
      tries_.push_back({Clock::Now() + kTryFor, request.inode, ticket});
      must_end_.NotifyAll();
    } else {
      answers.outcomes.emplace_back(std::move(done), taken ? *std::move(taken) : Outcome::kWouldBlock);
    }
    GrantWaits(request.inode, answers);  // what it had in place of this may have been more
  }
  answers.Send();
}

LocalLocks::Ticket LocalLocks::Lock(const Request& request, Done<Outcome> done) {
  Answers answers;
  Ticket ticket = 0;
  {
    MutexLock lock(mutex_);
    ticket = next_ticket_++;
    const FileLock wanted = LockOf(request, {});
    if (auto taken = Take(inodes_[request.inode], wanted)) {
      answers.outcomes.emplace_back(std::move(done), *std::move(taken));
    } else if (Result<Outcome> refused = BeginWait(request.inode, {.ticket = ticket, .lock = wanted, .done = done});
               !refused.ok() || *refused != Outcome::kGranted) {
      answers.outcomes.emplace_back(std::move(done), std::move(refused));
    }
    GrantWaits(request.inode, answers);
  }
  answers.Send();
  return ticket;
}

// kGranted: it waits.
Result<LocalLocks::Outcome> LocalLocks::BeginWait(InodeId inode, Wait wait) {
  if (is_ending_) return Outcome::kInterrupted;
  Inode& state = inodes_[inode];
  if (state.held.held().size() + state.waits.size() >= LockTable::kLocksMax) return LockTable::Full();
  CAIRNFS_RETURN_IF_ERROR(StartEnds());
  if (IsRecord(wait.lock)) {
    if (ClosesCycle(inode, wait.lock)) return Outcome::kDeadlock;
    waits_.emplace(wait.lock.owner.number, WaitOfOwner{inode, wait.lock});
  }
  state.waits.push_back(std::move(wait));
  return Outcome::kGranted;
}

bool LocalLocks::ClosesCycle(InodeId inode, const FileLock& wanted) const {
  std::unordered_set<uint64_t> seen;
  std::vector<WaitOfOwner> ahead{{inode, wanted}};
  for (size_t looked = 0; !ahead.empty() && looked < kCycleWaitsMax; ++looked) {
    const WaitOfOwner wait = ahead.back();
    ahead.pop_back();
    for (const FileLock& held : inodes_.at(wait.inode).held.held()) {
      if (!InConflict(held, wait.lock)) continue;
      if (held.owner == wanted.owner) return true;
      if (!seen.insert(held.owner.number).second) continue;
      const auto [begin, end] = waits_.equal_range(held.owner.number);
      for (auto next = begin; next != end; ++next) ahead.push_back(next->second);
    }
  }
  return false;
}

// --- freeing ---

void LocalLocks::GrantWaits(InodeId inode, Answers& answers) {
  Inode& state = inodes_[inode];
  // A lock that is granted may replace one that was more: then those that were passed over are looked at again.
  for (bool looks_again = true; looks_again;) {
    looks_again = false;
    std::vector<Wait> left;
    for (Wait& wait : state.waits) {
      if (state.held.Conflict(wait.lock) != nullptr) {
        left.push_back(std::move(wait));
        continue;
      }
      ForgetWait(wait, inode);
      const Status set = state.held.Set(wait.lock);
      answers.outcomes.emplace_back(std::move(wait.done),
                                    set.ok() ? Result<Outcome>(Outcome::kGranted) : Result<Outcome>(set.error()));
      looks_again = !left.empty();
    }
    state.waits = std::move(left);
  }
  ForgetIfEmpty(inode);
}

void LocalLocks::ForgetWait(const Wait& wait, InodeId inode) {
  if (!IsRecord(wait.lock) || wait.is_try) return;
  const auto [begin, end] = waits_.equal_range(wait.lock.owner.number);
  const auto found = std::find_if(
      begin, end, [&](const auto& each) { return each.second.inode == inode && each.second.lock == wait.lock; });
  if (found != end) waits_.erase(found);
}

void LocalLocks::Unlock(const Request& request, const Done<void>& done) {
  if (inode_count_ == 0) return done(Status());
  Answers answers;
  {
    MutexLock lock(mutex_);
    const FileLock freed = LockOf(request, {});
    const auto found = inodes_.find(request.inode);
    if (found != inodes_.end() && found->second.held.Unset(freed.owner, freed.start, freed.last)) {
      GrantWaits(request.inode, answers);
    }
  }
  answers.Send();
  done(Status());
}

void LocalLocks::ReleaseHandle(InodeId inode, uint64_t handle) {
  if (inode_count_ == 0) return;
  Answers answers;
  {
    MutexLock lock(mutex_);
    const auto found = inodes_.find(inode);
    if (found == inodes_.end()) return;
    found->second.closing.Forget(handle);
    if (found->second.held.UnsetHandle(handle)) GrantWaits(inode, answers);
  }
  answers.Send();
}

void LocalLocks::NoteClosed(InodeId inode, uint64_t handle) {
  if (inode_count_ == 0) return;
  MutexLock lock(mutex_);
  const auto found = inodes_.find(inode);
  if (found == inodes_.end()) return;
  const std::vector<FileLock>& held = found->second.held.held();
  if (std::any_of(held.begin(), held.end(), LockedThrough(handle))) found->second.closing.Note(handle);
}

// --- the ends of waits ---

Status LocalLocks::StartEnds() {
  if (ends_.joinable()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(ends_, StartThread(
                                      "waits for locks", [this] { RunEnds(); }, ErrorCode::kTooLarge));
  return {};
}

bool LocalLocks::EndWait(InodeId inode, Ticket ticket, Outcome outcome, Answers& answers) {
  const auto found = inodes_.find(inode);
  if (found == inodes_.end()) return false;
  std::vector<Wait>& waits = found->second.waits;
  const auto wait = std::find_if(waits.begin(), waits.end(), [&](const Wait& each) { return each.ticket == ticket; });
  if (wait == waits.end()) return false;
  ForgetWait(*wait, inode);
  answers.outcomes.emplace_back(std::move(wait->done), outcome);
  waits.erase(wait);
  ForgetIfEmpty(inode);
  return true;
}

void LocalLocks::Cancel(InodeId inode, Ticket ticket) {
  MutexLock lock(mutex_);
  if (EndWait(inode, ticket, Outcome::kInterrupted, cancelled_)) must_end_.NotifyAll();
}

void LocalLocks::RunEnds() {
  pthread_setname_np(pthread_self(), "locks");
  MutexLock lock(mutex_);
  while (true) {
    Answers answers = std::exchange(cancelled_, {});
    while (!tries_.empty() && tries_.front().until <= Clock::Now()) {
      EndWait(tries_.front().inode, tries_.front().ticket, Outcome::kWouldBlock, answers);
      tries_.pop_front();
    }
    if (!answers.empty()) {
      lock.Unlock();
      answers.Send();
      lock.Lock();
    } else if (stops_) {
      return;
    } else if (tries_.empty()) {
      must_end_.Wait(mutex_);
    } else {
      must_end_.WaitUntil(mutex_, tries_.front().until);
    }
  }
}

void LocalLocks::EndWaits() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    is_ending_ = true;
    waits_.clear();
    for (auto& [inode, state] : inodes_) {
      for (Wait& wait : state.waits) answers.outcomes.emplace_back(std::move(wait.done), Outcome::kInterrupted);
      state.waits.clear();
    }
    std::erase_if(inodes_, [](const auto& each) { return each.second.empty(); });
    inode_count_ = inodes_.size();
  }
  answers.Send();
}

}  // namespace cairnfs::coherence
