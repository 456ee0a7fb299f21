#include "coherence/locks.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/log.h"

namespace cairnfs::coherence {
namespace {

constexpr size_t kBatchOperationsMax = 256;
constexpr size_t kSweepPageKeys = 512;
// The kernel sends RELEASE without waiting for it, so that a lock may be asked for just ahead of the release that the
// same program did before. What is refused because of a lock of this host is tried once more after this; where that
// sleep ends late, threads wait for a processor, as may the one with the release: then again, much later.
constexpr auto kReleaseGrace = std::chrono::milliseconds(3);
constexpr auto kReleaseGraceMax = std::chrono::milliseconds(100);
constexpr auto kWatchRetry = std::chrono::milliseconds(100);  // after a watch that could not be made

// How late the sleep ended; 0 without one.
std::chrono::nanoseconds SleepLate(std::chrono::nanoseconds length) {
  if (length.count() == 0) return length;
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(length);
  return std::chrono::steady_clock::now() - begin - length;
}

}  // namespace

std::unique_ptr<ClusterLocks> ClusterLocks::Start(const Parts& parts, const Options& options) {
  std::unique_ptr<ClusterLocks> locks(new ClusterLocks(parts, options));
  ClusterLocks* self = locks.get();
  locks->view_changes_ = parts.membership.OnChange([self](const cluster::ViewPtr&) { self->OnView(); });
  self->OnView();
  return locks;
}

ClusterLocks::ClusterLocks(const Parts& parts, const Options& options)
    : parts_(parts), tasks_("locks", options.threads) {}

ClusterLocks::~ClusterLocks() {
  EndWaits();
  view_changes_.reset();
}  // and tasks_ ends the watches

// --- calls
// ------------------------------------------------------------------------------------------------------------

FileLock ClusterLocks::LockOf(const Request& request) {
  FileLock lock;
  lock.owner.kind = request.kind;
  lock.type = request.type;
  lock.handle = request.handle;
  lock.pid = request.pid;
  if (request.kind == LockKind::kFlock) {
    lock.owner.number = request.handle;
  } else {
    lock.owner.number = request.owner;
    lock.start = request.start;
    lock.last = request.last;
  }
  return lock;
}

void ClusterLocks::TryLock(const Request& request, Done<Outcome> done) {
  Ask(request.inode, {Operation::Kind::kTry, LockOf(request), 0, [done = std::move(done)](Result<Answer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
}

ClusterLocks::Ticket ClusterLocks::Lock(const Request& request, Done<Outcome> done) {
  const Ticket ticket = next_ticket_.fetch_add(1);
  bool refused = false;
  {
    MutexLock lock(mutex_);
    refused = ending_;
    if (!refused) tickets_.emplace(ticket, request.inode);
  }
  if (refused) {
    done(Outcome::kInterrupted);
    return ticket;
  }
  Ask(request.inode, {Operation::Kind::kWait, LockOf(request), ticket, [done = std::move(done)](Result<Answer> answer) {
                        if (!answer.ok()) return done(answer.error());
                        done(answer->outcome);
                      }});
  return ticket;
}

void ClusterLocks::Cancel(Ticket ticket) {
  auto told = std::make_shared<Told>();
  {
    MutexLock lock(mutex_);
    auto found = tickets_.find(ticket);
    if (found == tickets_.end()) return;
    const InodeId inode = found->second;
    Inode& state = inodes_[inode];
    auto queued = std::find_if(state.queue.begin(), state.queue.end(),
                               [&](const Operation& operation) { return operation.ticket == ticket; });
    if (queued == state.queue.end()) {
      Enqueue(inode, state, {Operation::Kind::kCancel, {}, ticket, {}});
    } else if (queued->kind == Operation::Kind::kWait) {
      told->emplace_back(std::move(queued->done), Answer{Outcome::kInterrupted, {}});
      state.queue.erase(queued);
      tickets_.erase(found);
    }
  }
  if (!told->empty()) tasks_.Post([told] { Tell(*told); });
}

void ClusterLocks::Unlock(const Request& request, Done<void> done) {
  const FileLock freed = LockOf(request);
  {
    MutexLock lock(mutex_);
    auto matches = [&](const FileLock& held) {
      return held.owner.kind == freed.owner.kind && held.owner.number == freed.owner.number;
    };
    if (Holds(request.inode, matches)) {
      Enqueue(request.inode, inodes_[request.inode],
              {Operation::Kind::kUnlock, freed, 0,
               [done](const Result<Answer>& answer) { done(answer.ok() ? Status() : Status(answer.error())); }});
      return;
    }
  }
  done(Status());
}

void ClusterLocks::Test(const Request& request, Done<std::optional<Holder>> done) {
  const cluster::NodeId self = parts_.membership.self();
  Ask(request.inode,
      {Operation::Kind::kTest, LockOf(request), 0, [self, done = std::move(done)](Result<Answer> answer) {
         if (!answer.ok()) return done(answer.error());
         if (!answer->holder) return done(std::optional<Holder>());
         const FileLock& held = *answer->holder;
         done(std::optional(Holder{held.type, held.start, held.last, held.owner.session.node == self ? held.pid : 0}));
       }});
}

void ClusterLocks::ReleaseOwner(InodeId inode, uint64_t owner, Done<void> done) {
  Request request;
  request.inode = inode;
  request.owner = owner;
  Unlock(request, std::move(done));
}

void ClusterLocks::ReleaseHandle(InodeId inode, HandleId handle) {
  MutexLock lock(mutex_);
  if (!Holds(inode, [&](const FileLock& held) { return held.handle == handle; })) return;
  Operation operation{Operation::Kind::kReleaseHandle, {}, 0, {}};
  operation.lock.handle = handle;
  Enqueue(inode, inodes_[inode], std::move(operation));
}

void ClusterLocks::ForgetAll() {
  Told told;
  {
    MutexLock lock(mutex_);
    ++epoch_;
    guard_revision_ = 0;
    changed_.NotifyAll();
    refused_.clear();
    for (auto& [inode, state] : inodes_) {
      std::move(state.refused.begin(), state.refused.end(), std::back_inserter(state.queue));
      state.refused.clear();
      state.retry_due = state.answer_lost = false;
      for (Operation& operation : state.queue) {
        if (operation.kind == Operation::Kind::kWait) {
          tickets_.erase(operation.ticket);
          DropEdge(operation.lock.owner.number, operation.ticket);  // of one in doubt
        }
        told.emplace_back(std::move(operation.done), AnswerWithout(operation, LocksLost()));
      }
      state.queue.clear();
      EndAllWaits(state, LocksLost(), told);
      state.known = {};
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
    refused_.clear();
    const Answer interrupted{Outcome::kInterrupted, {}};
    for (auto& [inode, state] : inodes_) {
      EndRefused(state, told);
      for (Operation& operation : state.queue) {
        if (operation.kind != Operation::Kind::kWait) continue;
        tickets_.erase(operation.ticket);
        told.emplace_back(std::move(operation.done), interrupted);
      }
      std::erase_if(state.queue, [](const Operation& operation) { return operation.kind == Operation::Kind::kWait; });
      EndAllWaits(state, interrupted, told);
      Wake(inode, state);
    }
  }
  Tell(told);
}

// --- the queue of an inode
// --------------------------------------------------------------------------------------------

void ClusterLocks::Ask(InodeId inode, Operation operation) {
  MutexLock lock(mutex_);
  Enqueue(inode, inodes_[inode], std::move(operation));
}

void ClusterLocks::Enqueue(InodeId inode, Inode& state, Operation operation) {
  state.queue.push_back(std::move(operation));
  Wake(inode, state);
}

void ClusterLocks::Wake(InodeId inode, Inode& state) {
  if (state.running) return;
  state.running = true;
  tasks_.Post([this, inode] { Serve(inode); });
}

bool ClusterLocks::Holds(InodeId inode, const std::function<bool(const FileLock&)>& matches) const {
  auto found = inodes_.find(inode);
  if (found == inodes_.end()) return false;
  const Inode& state = found->second;
  if (state.running || !state.queue.empty()) return true;
  if (std::any_of(state.refused.begin(), state.refused.end(), MayTake)) return true;
  auto is_mine = [&](const FileLock& held) {
    return held.owner.session.node == parts_.membership.self() && matches(held);
  };
  const std::vector<FileLock>& held = state.known.table.held();
  if (std::any_of(held.begin(), held.end(), is_mine)) return true;
  // One that waits may have been granted just now.
  return std::any_of(state.waiters.begin(), state.waiters.end(),
                     [&](const auto& waiter) { return matches(waiter.second.lock); });
}

void ClusterLocks::Serve(InodeId inode) {
  std::chrono::nanoseconds late{0};  // the end of the last sleep
  for (;;) {
    Batch batch;
    batch.late = late;
    Told told;
    Step step;
    {
      MutexLock lock(mutex_);
      step = NextStep(inode, batch, told);
    }
    Tell(told);
    switch (step) {
      case Step::kStartWatch: StartWatch(inode); break;
      case Step::kEndWatch: EndWatch(inode); break;
      case Step::kIdle: return;
      case Step::kBatch:
        Transact(batch);
        Finish(batch);
        late = SleepLate(batch.sleep);
        break;
    }
  }
}

ClusterLocks::Step ClusterLocks::NextStep(InodeId inode, Batch& batch, Told& told) {
  Inode& state = inodes_[inode];
  EndGranted(state, told);
  SweepIfDoubtful(inode, state);
  if (!state.waiters.empty() && state.watch == nullptr && (state.queue.empty() || !state.watch_failed))
    return Step::kStartWatch;
  if (!state.queue.empty() || state.retry_due) {
    batch.inode = inode;
    batch.epoch = epoch_;
    batch.operations = std::exchange(state.refused, {});
    batch.answer_lost = std::exchange(state.answer_lost, false);
    state.retry_due = false;
    for (size_t taken = 0; taken < kBatchOperationsMax && !state.queue.empty(); ++taken) {
      batch.operations.push_back(std::move(state.queue.front()));
      state.queue.pop_front();
    }
    for (const auto& [ticket, waiter] : state.waiters) batch.waiters.emplace(ticket, waiter.lock);
    batch.record = state.known;
    batch.guard_revision = guard_revision_;
    return Step::kBatch;
  }
  if (state.waiters.empty() && state.watch != nullptr) return Step::kEndWatch;
  state.running = false;
  const std::vector<FileLock>& held = state.known.table.held();
  const bool holds = std::any_of(held.begin(), held.end(), [&](const FileLock& lock) {
    return lock.owner.session.node == parts_.membership.self();
  });
  if (!holds && state.waiters.empty() && state.refused.empty()) inodes_.erase(inode);
  return Step::kIdle;
}

void ClusterLocks::Finish(Batch& batch) {
  Told told;
  {
    MutexLock lock(mutex_);
    Inode& state = inodes_[batch.inode];
    if (epoch_ != batch.epoch) batch.status = LocksLost();
    for (size_t i = 0; i < batch.operations.size(); ++i) FinishOperation(batch, i, state, told);
    NoteRefused(batch, state);
    if (batch.status.ok()) {
      // With those that wait now: what they met in their turn may be freed or handed over by what came after them.
      Adopt(batch.inode, state, std::move(batch.record));
      guard_revision_ = batch.guard_revision;
    }
    for (auto& [ticket, answer] : batch.ended) EndWait(state, ticket, std::move(answer), told);
    if (!batch.status.ok() && batch.status.error().code == ErrorCode::kStale) {
      EndAllWaits(state, LocksLost(), told);
      state.known = {};
    }
    EndGranted(state, told);
  }
  Tell(told);
}

void ClusterLocks::FinishOperation(Batch& batch, size_t index, Inode& state, Told& told) {
  Operation& operation = batch.operations[index];
  std::optional<Result<Answer>> answer;
  if (!batch.status.ok()) {
    const Error& error = batch.status.error();
    if (IsTriedAgain(batch, operation)) return KeepRefused(std::move(operation), error, state, told);
    const bool may_be_there = error.code == ErrorCode::kNoSpace && MayTake(operation);
    answer = may_be_there ? AnswerAtTheEnd(operation) : AnswerWithout(operation, error);
  } else {
    answer = std::move(batch.answers[index]);
  }
  if (!answer && ending_) answer = Answer{Outcome::kInterrupted, {}};
  if (!answer) {
    operation.lock.owner.session = batch.session;
    state.waiters.emplace(operation.ticket, Waiter{operation.lock, std::move(operation.done)});
    return;
  }
  const bool refused = answer->ok() && (*answer)->outcome == Outcome::kWouldBlock;
  const bool may_be_early = operation.tries == 0 || (operation.tries == 1 && batch.late > kReleaseGrace);
  if (refused && may_be_early && (*answer)->holder->owner.session == batch.session) {
    const std::chrono::nanoseconds grace = ++operation.tries == 1 ? kReleaseGrace : 10 * batch.late;
    batch.sleep = std::max(batch.sleep, std::min<std::chrono::nanoseconds>(grace, kReleaseGraceMax));
    state.queue.push_back(std::move(operation));
    return;
  }
  if (operation.kind == Operation::Kind::kWait) {
    tickets_.erase(operation.ticket);
    DropEdge(operation.lock.owner.number, operation.ticket);
  }
  told.emplace_back(std::move(operation.done), std::move(*answer));
}

Result<ClusterLocks::Answer> ClusterLocks::AnswerWithout(const Operation& operation, const Error& error) {
  using Kind = Operation::Kind;
  const bool frees = operation.kind == Kind::kUnlock || operation.kind == Kind::kReleaseHandle;
  if (frees && error.code == ErrorCode::kStale) return Answer{};
  return error;
}

Error ClusterLocks::LocksLost() {
  return MakeError(ErrorCode::kStale, "the host lost its session, and its locks with it");
}

void ClusterLocks::Tell(Told& told) {
  for (auto& [done, answer] : told) {
    if (done) done(std::move(answer));
  }
}

// --- waits
// ------------------------------------------------------------------------------------------------------------

void ClusterLocks::Adopt(InodeId inode, Inode& state, Record record) {
  if (record.as_of >= state.known.as_of) state.known = std::move(record);
  for (const auto& [ticket, waiter] : state.waiters) {
    if (waiter.lock.owner.kind != LockKind::kRecord) continue;
    SetEdge(waiter.lock.owner.number, {inode, ticket, BlockersOf(state.known.table, waiter.lock)});
  }
}

void ClusterLocks::EndGranted(Inode& state, Told& told) {
  std::vector<Ticket> gone;
  for (const auto& [ticket, waiter] : state.waiters) {
    if (state.known.table.FindWaiting(waiter.lock.owner.session, ticket) == nullptr) gone.push_back(ticket);
  }
  for (const Ticket ticket : gone) {
    // Whoever takes a waiting entry away grants it, unless this host's session is over.
    if (state.known.table.Covers(state.waiters.at(ticket).lock)) {
      EndWait(state, ticket, Answer{}, told);
    } else {
      EndWait(state, ticket, LocksLost(), told);
    }
  }
}

void ClusterLocks::EndWait(Inode& state, Ticket ticket, Result<Answer> answer, Told& told) {
  auto found = state.waiters.find(ticket);
  if (found == state.waiters.end()) return;
  DropEdge(found->second.lock.owner.number, ticket);
  tickets_.erase(ticket);
  told.emplace_back(std::move(found->second.done), std::move(answer));
  state.waiters.erase(found);
}

void ClusterLocks::EndAllWaits(Inode& state, const Result<Answer>& answer, Told& told) {
  while (!state.waiters.empty()) EndWait(state, state.waiters.begin()->first, answer, told);
}

void ClusterLocks::StartWatch(InodeId inode) {
  uint64_t after;
  {
    MutexLock lock(mutex_);
    after = inodes_[inode].known.as_of;
  }
  const std::string key = LocksKey(inode);
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this, inode, key](const std::vector<kv::KvEvent>& events, uint64_t) {
    for (const kv::KvEvent& event : events) {
      if (event.key == key) OnEvent(inode, event);
    }
  };
  callbacks.lost = [this, inode](uint64_t) { SweepNow(inode); };
  auto watch = parts_.shared.Watch(key, std::string(key) + std::string(1, '\0'), after, std::move(callbacks));
  {
    MutexLock lock(mutex_);
    Inode& state = inodes_[inode];
    state.watch_failed = !watch.ok();
    if (watch.ok()) {
      state.watch = std::move(*watch);
      return;
    }
  }
  // Until there is one, a look now and then tells the same.
  spdlog::warn("locks of inode {} cannot be watched: {}", inode.value, watch.error().message);
  std::this_thread::sleep_for(kWatchRetry);
  SweepNow(inode);
}

void ClusterLocks::EndWatch(InodeId inode) {
  std::unique_ptr<kv::KvWatch> watch;
  MutexLock lock(mutex_);
  watch = std::move(inodes_[inode].watch);
  lock.Unlock();  // a callback may wait for the mutex, and the watch for the callback
}

void ClusterLocks::OnEvent(InodeId inode, const kv::KvEvent& event) {
  Record record;
  record.as_of = event.revision;
  if (event.value) {
    Result<LockTable> table = LockTable::Decode(*event.value);
    if (!table.ok()) return SweepNow(inode);  // which reports it
    record.table = std::move(*table);
    record.key_revision = event.revision;
  }
  Told told;
  {
    MutexLock lock(mutex_);
    auto found = inodes_.find(inode);
    if (found == inodes_.end()) return;
    Inode& state = found->second;
    Adopt(inode, state, std::move(record));
    if (state.running) return;  // the task goes on from what is known
    EndGranted(state, told);
    SweepIfDoubtful(inode, state);
    if (state.waiters.empty()) Wake(inode, state);
  }
  Tell(told);
}

// --- sessions that end
// ------------------------------------------------------------------------------------------------

void ClusterLocks::OnView() {
  // Every time: a session that came and went between two calls is seen in neither view.
  if (!sweep_due_.exchange(true)) tasks_.Post([this] { SweepAll(); });
  MutexLock lock(mutex_);
  for (auto& [inode, state] : inodes_) SweepIfDoubtful(inode, state);
}

void ClusterLocks::SweepIfDoubtful(InodeId inode, Inode& state) {
  if (state.waiters.empty() || ending_) return;
  const cluster::ViewPtr view = parts_.membership.view();
  if (state.swept_view == view && state.swept_revision == state.known.key_revision) return;
  state.swept_view = view;
  state.swept_revision = state.known.key_revision;
  if (Doubtful(state.known.table)) Enqueue(inode, state, {Operation::Kind::kSweep, {}, 0, {}});
}

void ClusterLocks::SweepNow(InodeId inode) { Ask(inode, {Operation::Kind::kSweep, {}, 0, {}}); }

void ClusterLocks::SweepAll() {
  sweep_due_.store(false);  // a change from here on asks anew
  const cluster::ViewPtr view = parts_.membership.view();
  auto is_up = [](const cluster::NodeInfo& node) { return node.state == cluster::NodeState::kUp; };
  const auto first = std::find_if(view->nodes.begin(), view->nodes.end(), is_up);
  if (first == view->nodes.end() || first->id != parts_.membership.self()) return;
  const std::string end = kv::PrefixEnd(LocksPrefix());
  std::string begin = LocksPrefix();
  for (bool more = true; more;) {
    {
      MutexLock lock(mutex_);
      if (ending_) return;
    }
    const Result<kv::KvRange> page = parts_.fenced.Range(begin, end, kSweepPageKeys);
    // Whoever meets such a record sweeps it as well.
    if (!page.ok() || page->entries.empty()) return;
    for (const kv::KvEntry& entry : page->entries) {
      const std::optional<InodeId> inode = InodeOfLocksKey(entry.key);
      const Result<LockTable> table = LockTable::Decode(entry.value);
      if (inode && table.ok() && Doubtful(*table)) SweepNow(*inode);
    }
    more = page->more;
    begin = page->entries.back().key + std::string(1, '\0');
  }
}

}  // namespace cairnfs::coherence
