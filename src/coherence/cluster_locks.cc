// ClusterLocks: the calls, and what becomes of them. All that is decided here is decided with the mutex held, from what
// is known of an inode's locks; cluster_locks_store.cc reads, writes and watches the store for it.
#include "coherence/cluster_locks.h"

#include <algorithm>
#include <iterator>
#include <thread>

#include "base/clock.h"

namespace cairnfs::coherence {
namespace {

using std::chrono::nanoseconds;

// The kernel sends RELEASE without waiting for it, so that a lock may be asked for just ahead of the release that the
// same program did before. What is refused because of a lock of this host is tried once more after this; where that
// rest ends late, threads wait for a processor, as may the one with the release: then again, much later.
constexpr nanoseconds kReleaseGrace = std::chrono::milliseconds(3);
constexpr nanoseconds kReleaseGraceMax = std::chrono::milliseconds(100);

// How late it ended.
nanoseconds Rest(nanoseconds length) {
  const auto begin = Clock::Now();
  Clock::SleepFor(length);
  return Clock::Now() - begin - length;
}

}  // namespace

ClusterLocks::ClusterLocks(const Parts& parts, const Options& options)
    : parts_(parts), tasks_("locks", options.threads) {}

ClusterLocks::~ClusterLocks() { EndWaits(); }  // and tasks_ ends the watches

// --- calls ---

FileLock ClusterLocks::LockOf(const Request& request) const {
  const bool is_flock = request.kind == LockKind::kFlock;
  FileLock lock;
  lock.owner = {parts_.membership.self(), request.kind, is_flock ? request.handle : request.owner};
  lock.type = request.type;
  lock.handle = request.handle;
  lock.pid = request.pid;
  if (!is_flock) {
    lock.start = request.start;
    lock.last = request.last;
  }
  return lock;
}

void ClusterLocks::TryLock(const Request& request, Done<Outcome> done) {
  Ask(request.inode, {Kind::kTry, LockOf(request), 0, [done = std::move(done)](Result<Answer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
}

ClusterLocks::Ticket ClusterLocks::Lock(const Request& request, Done<Outcome> done) {
  const Ticket ticket = next_ticket_.fetch_add(1);
  Ask(request.inode, {Kind::kWait, LockOf(request), ticket, [done = std::move(done)](Result<Answer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
  return ticket;
}

void ClusterLocks::Cancel(InodeId inode, Ticket ticket) {
  MutexLock lock(mutex_);
  auto found = inodes_.find(inode);
  if (found == inodes_.end()) return;
  found->second.queue.push_back({Kind::kCancel, {}, ticket, {}});
  Wake(inode, found->second);
}

void ClusterLocks::Unlock(const Request& request, Done<void> done) {
  const FileLock freed = LockOf(request);
  {
    MutexLock lock(mutex_);
    if (MayHold(request.inode, [&](const FileLock& held) { return held.owner == freed.owner; })) {
      Inode& state = StateOf(request.inode);
      state.queue.push_back({Kind::kUnlock, freed, 0, [done = std::move(done)](const Result<Answer>& answer) {
                               done(answer.ok() ? Status() : Status(answer.error()));
                             }});
      return Wake(request.inode, state);
    }
  }
  done(Status());
}

void ClusterLocks::Test(const Request& request, Done<std::optional<Holder>> done) {
  const cluster::NodeId self = parts_.membership.self();
  Ask(request.inode,
      {Kind::kTest, LockOf(request), 0, [self, done = std::move(done)](Result<Answer> answer) {
         if (!answer.ok()) return done(answer.error());
         if (!answer->holder) return done(std::optional<Holder>());
         const FileLock& held = *answer->holder;
         done(std::optional(Holder{held.type, held.start, held.last, held.owner.node == self ? held.pid : 0}));
       }});
}

void ClusterLocks::ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done) {
  Request request;
  request.inode = inode;
  request.owner = owner;
  Unlock(request, std::move(done));
}

void ClusterLocks::ReleaseHandle(InodeId inode, uint64_t handle) {
  MutexLock lock(mutex_);
  if (!MayHold(inode, [&](const FileLock& held) { return held.handle == handle; })) return;
  Operation operation{Kind::kReleaseHandle, {}, 0, {}};
  operation.lock.handle = handle;
  Inode& state = StateOf(inode);
  state.queue.push_back(std::move(operation));
  Wake(inode, state);
}

void ClusterLocks::ForgetAll() {
  Told told;
  {
    MutexLock lock(mutex_);
    ++epoch_;
    changed_.NotifyAll();
    stalled_.clear();
    for (auto& [inode, state] : inodes_) {
      for (Operation& operation : state.queue) {
        told.emplace_back(std::move(operation.done), AnswerWithout(operation, LocksLost()));
      }
      for (Operation& operation : state.waiting) told.emplace_back(std::move(operation.done), LocksLost());
      state.queue.clear();
      state.waiting.clear();
      state.known = KnownLocks(parts_.membership.self());
      state.must_read = state.is_fresh = state.behind = state.stalled = false;
      state.ends_watch = true;
      Wake(inode, state);
    }
  }
  Tell(told);
}

void ClusterLocks::EndWaits() {
  Told told;
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
    for (auto& [inode, state] : inodes_) {
      for (Operation& operation : state.waiting) {
        told.emplace_back(std::move(operation.done), Answer{Outcome::kInterrupted, {}});
      }
      state.waiting.clear();
      Wake(inode, state);
    }
  }
  Tell(told);
}

Error ClusterLocks::LocksLost() {
  return MakeError(ErrorCode::kStale, "the host lost its session, and its locks with it");
}

Result<ClusterLocks::Answer> ClusterLocks::AnswerWithout(const Operation& operation, const Error& error) {
  if (operation.kind == Kind::kCancel) return Answer{Outcome::kInterrupted, {}};
  const bool frees = operation.kind == Kind::kUnlock || operation.kind == Kind::kReleaseHandle;
  if (frees && error.code == ErrorCode::kStale) return Answer{};
  return error;
}

void ClusterLocks::Tell(Told& told) {
  for (auto& [done, answer] : told) {
    if (done) done(std::move(answer));
  }
}

// --- the queue of an inode ---

ClusterLocks::Inode& ClusterLocks::StateOf(InodeId inode) {
  return inodes_.try_emplace(inode, parts_.membership.self()).first->second;
}

void ClusterLocks::Ask(InodeId inode, Operation operation) {
  MutexLock lock(mutex_);
  Inode& state = StateOf(inode);
  state.queue.push_back(std::move(operation));
  Wake(inode, state);
}

void ClusterLocks::Wake(InodeId inode, Inode& state) {
  if (state.running) return;
  state.running = true;
  tasks_.Post([this, inode] { Serve(inode); });
}

bool ClusterLocks::MayHold(InodeId inode, const std::function<bool(const FileLock&)>& matches) const {
  auto found = inodes_.find(inode);
  if (found == inodes_.end()) return false;
  const Inode& state = found->second;
  const std::vector<FileLock>& held = state.known.own.held();
  return state.running || state.behind || !state.queue.empty() || std::any_of(held.begin(), held.end(), matches);
}

ClusterLocks::Operation ClusterLocks::TakeFirst(Inode& state) {
  Operation first = std::move(state.queue.front());
  state.queue.pop_front();
  state.is_fresh = false;
  return first;
}

bool ClusterLocks::EndWait(Inode& state, Ticket ticket, Result<Answer> answer, Told& told) {
  auto found = std::find_if(state.waiting.begin(), state.waiting.end(),
                            [&](const Operation& operation) { return operation.ticket == ticket; });
  if (found == state.waiting.end()) return false;
  told.emplace_back(std::move(found->done), std::move(answer));
  state.waiting.erase(found);
  return true;
}

HostLocks ClusterLocks::RecordOf(const Inode& state) {
  HostLocks record{state.known.own, {}};
  for (const Operation& operation : state.waiting) record.waiting.push_back({operation.since, operation.lock});
  return record;
}

void ClusterLocks::Serve(InodeId inode) {
  nanoseconds late{0};  // the end of the last rest
  for (;;) {
    Work work;
    Told told;
    {
      MutexLock lock(mutex_);
      work = NextWork(inode, late, told);
      work.epoch = epoch_;
    }
    Tell(told);
    late = nanoseconds(0);
    switch (work.step) {
      case Step::kIdle: return;
      case Step::kRead: Read(inode, work); break;
      case Step::kCommit: Commit(inode, work); break;
      case Step::kStartWatch: StartWatch(inode); break;
      case Step::kEndWatch: EndWatch(inode); break;
      case Step::kRest: late = Rest(work.rest); break;
    }
  }
}

ClusterLocks::Work ClusterLocks::NextWork(InodeId inode, nanoseconds late, Told& told) {
  Inode& state = StateOf(inode);
  if (state.watch != nullptr && state.waiting.empty() && (state.ends_watch || ending_)) return {Step::kEndWatch};
  const bool is_asked = !state.queue.empty();
  if (state.must_read && (is_asked || (!state.waiting.empty() && !state.stalled))) return ReadFor(state);
  while (!state.stalled) {
    auto first = std::find_if(state.waiting.begin(), state.waiting.end(), [&](const Operation& operation) {
      return state.known.Conflict(operation.lock) == nullptr &&
             !state.known.MustLetPass(operation.lock, operation.since);
    });
    if (first == state.waiting.end()) break;
    if (std::optional<Work> work = Take(state, *first, first->ticket, told)) return *std::move(work);
  }
  if (!state.waiting.empty() && state.watch == nullptr && (!is_asked || !state.watch_failed)) {
    return {Step::kStartWatch};
  }
  while (!state.queue.empty()) {
    if (std::optional<Work> work = Begin(inode, state, late, told)) return *std::move(work);
  }
  if (state.behind && !state.stalled) return WriteOf(state);
  state.running = false;
  if (state.known.own.empty() && state.watch == nullptr && !state.behind) inodes_.erase(inode);
  return {};
}

ClusterLocks::Work ClusterLocks::ReadFor(const Inode& state) {
  Work work{Step::kRead};
  work.is_for_first = !state.queue.empty();
  return work;
}

ClusterLocks::Work ClusterLocks::WriteOf(const Inode& state) {
  Work work{Step::kCommit};
  work.record = RecordOf(state);
  return work;
}

std::optional<ClusterLocks::Work> ClusterLocks::Begin(InodeId inode, Inode& state, nanoseconds late, Told& told) {
  Operation& operation = state.queue.front();
  const FileLock& lock = operation.lock;
  switch (operation.kind) {
    case Kind::kTry:
    case Kind::kWait: return BeginLock(inode, state, late, told);
    case Kind::kUnlock:
      state.behind |= state.known.own.Unset(lock.owner, lock.start, lock.last);
      return End(state, {}, told);
    case Kind::kReleaseHandle: state.behind |= state.known.own.UnsetHandle(lock.handle); return End(state, {}, told);
    case Kind::kCancel: {
      auto found = std::find_if(state.waiting.begin(), state.waiting.end(),
                                [&](const Operation& wait) { return wait.ticket == operation.ticket; });
      if (found != state.waiting.end()) {
        operation.done = std::move(found->done);
        state.waiting.erase(found);
        state.behind = true;
      }
      return End(state, {Outcome::kInterrupted, {}}, told);
    }
    case Kind::kTest: {
      if (!state.is_fresh) return ReadFor(state);
      Answer answer;
      if (const FileLock* holder = state.known.Conflict(lock)) answer.holder = *holder;
      told.emplace_back(TakeFirst(state).done, std::move(answer));
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<ClusterLocks::Work> ClusterLocks::End(Inode& state, Answer answer, Told& told) {
  Operation operation = TakeFirst(state);
  if (!state.behind) {
    told.emplace_back(std::move(operation.done), std::move(answer));
    return std::nullopt;
  }
  Work work = WriteOf(state);
  work.operation = std::move(operation);
  work.answer = std::move(answer);
  return work;
}

std::optional<ClusterLocks::Work> ClusterLocks::BeginLock(InodeId inode, Inode& state, nanoseconds late, Told& told) {
  Operation& operation = state.queue.front();
  const bool waits = operation.kind == Kind::kWait;
  if (waits && ending_) return End(state, {Outcome::kInterrupted, {}}, told);
  std::optional<FileLock> holder;
  if (const FileLock* found = state.known.Conflict(operation.lock)) holder = *found;
  if (!holder && !(waits && state.known.MustLetPass(operation.lock, operation.since))) {
    return Take(state, operation, 0, told);
  }
  // Who refuses has looked at the others' records, unless the lock in the way is of this host. Who waits has, too: it
  // is told of the changes from there on.
  const bool is_own = holder && holder->owner.node == parts_.membership.self();
  if (!state.is_fresh && (waits || !is_own)) return ReadFor(state);
  // flock(2): a conversion removes the old lock first, and does not bring it back.
  if (operation.lock.owner.kind == LockKind::kFlock) {
    state.behind |= state.known.own.Unset(operation.lock.owner, 0, kLockOffsetMax);
  }
  if (waits) return BeginWait(inode, state, told);
  if (is_own && (operation.tries == 0 || (operation.tries == 1 && late > kReleaseGrace))) {
    Work work{Step::kRest};
    work.rest = std::min(operation.tries == 0 ? kReleaseGrace : 10 * late, kReleaseGraceMax);
    ++operation.tries;
    state.queue.push_back(TakeFirst(state));
    return work;
  }
  return End(state, {Outcome::kWouldBlock, holder}, told);
}

std::optional<ClusterLocks::Work> ClusterLocks::BeginWait(InodeId inode, Inode& state, Told& told) {
  const FileLock& lock = state.queue.front().lock;
  if (lock.owner.kind == LockKind::kRecord && ClosesCycle(state, lock)) {
    return End(state, {Outcome::kDeadlock, {}}, told);
  }
  Operation operation = TakeFirst(state);
  if (state.known.own.held().size() + state.waiting.size() >= LockTable::kLocksMax) {
    told.emplace_back(std::move(operation.done),
                      MakeError(ErrorCode::kTooLarge, "too many wait for locks on one file"));
    return std::nullopt;
  }
  operation.since = state.known.as_of();
  const Ticket ticket = operation.ticket;
  state.waiting.push_back(std::move(operation));
  waited_in_.insert(inode);
  state.behind = true;
  Work work = WriteOf(state);
  work.ticket = ticket;
  return work;
}

std::optional<ClusterLocks::Work> ClusterLocks::Take(Inode& state, const Operation& operation, Ticket ticket,
                                                     Told& told) {
  Work work{Step::kCommit};
  work.record.held = state.known.own;
  if (Status set = work.record.held.Set(operation.lock); !set.ok()) {
    if (ticket == 0) {
      told.emplace_back(TakeFirst(state).done, set.error());
    } else {
      state.behind |= EndWait(state, ticket, set.error(), told);
    }
    return std::nullopt;
  }
  for (const Operation& wait : state.waiting) {
    if (wait.ticket != ticket) work.record.waiting.push_back({wait.since, wait.lock});
  }
  work.takes = true;
  work.as_of = state.known.as_of();
  work.ticket = ticket;
  if (ticket == 0) work.operation = TakeFirst(state);
  return work;
}

bool ClusterLocks::ClosesCycle(const Inode& state, const FileLock& wanted) {
  std::set<uint64_t> seen;
  std::vector<uint64_t> left;  // owners that `wanted` would wait for
  auto add_blockers = [&](const Inode& where, const FileLock& lock) {
    for (const FileLock& held : where.known.own.held()) {
      if (InConflict(held, lock)) left.push_back(held.owner.number);
    }
  };
  std::erase_if(waited_in_, [this](InodeId inode) REQUIRES_LOCK(mutex_) {
    auto found = inodes_.find(inode);
    return found == inodes_.end() || found->second.waiting.empty();
  });
  add_blockers(state, wanted);
  while (!left.empty()) {
    const uint64_t owner = left.back();
    left.pop_back();
    if (owner == wanted.owner.number) return true;
    if (!seen.insert(owner).second) continue;
    for (const InodeId inode : waited_in_) {
      const Inode& where = inodes_.at(inode);
      for (const Operation& wait : where.waiting) {
        const LockOwner& waiter = wait.lock.owner;
        if (waiter.kind == LockKind::kRecord && waiter.number == owner) add_blockers(where, wait.lock);
      }
    }
  }
  return false;
}

}  // namespace cairnfs::coherence
