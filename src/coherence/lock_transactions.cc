// ClusterLocks: what is done to an inode's record, in one optimistic transaction for all operations that queued up.
//
// A transaction may have run although its commit failed with kUnavailable, or may run later. So every operation is
// written to do nothing when it finds itself done already, and the record is read again before the next try. Of two
// tries only one can pass the compare of the record's revision, but for one case: the record did not exist, and comes
// and goes meanwhile. Against that each transaction also compares this host's guard key, and after a lost answer that
// is written first: what was sent before it can no longer run.
#include <algorithm>
#include <set>

#include "cluster/records.h"
#include "coherence/locks.h"

namespace cairnfs::coherence {
namespace {

constexpr auto kPauseMin = std::chrono::milliseconds(20);
constexpr auto kPauseMax = std::chrono::milliseconds(1000);
// Each costs a compare, and stores have limits.
constexpr size_t kPurgedAtOnceMax = 64;

}  // namespace

void ClusterLocks::Transact(Batch& batch) {
  bool must_read = batch.answer_lost;
  for (unsigned failures = 0;;) {
    const Status status = TryOnce(batch, must_read);
    if (status.ok()) return;
    must_read = true;
    if (status.error().code == ErrorCode::kConflict) continue;
    if (status.error().code != ErrorCode::kUnavailable || !Pause(batch, failures++)) {
      batch.status = status;
      return;
    }
  }
}

// kConflict: again, with a fresh record.
Status ClusterLocks::TryOnce(Batch& batch, bool must_read) {
  CAIRNFS_ASSIGN_OR_RETURN(const Session session, SessionOf(batch));
  batch.session = {parts_.membership.self(), session.revision};
  if (batch.answer_lost) CAIRNFS_RETURN_IF_ERROR(WriteGuard(batch, session));
  if (must_read) CAIRNFS_RETURN_IF_ERROR(Reload(batch, batch.session_keys_read));
  for (;;) {
    Plan plan = MakePlan(batch);
    const bool doubts = plan.blocked && !batch.session_keys_read && Doubtful(batch.record.table);
    if (!doubts && plan.table != batch.record.table) {
      const Status committed = CommitPlan(batch, session, plan);
      batch.answer_lost = !committed.ok() && committed.error().code == ErrorCode::kUnavailable;
      if (batch.answer_lost) {
        for (Operation& operation : batch.operations) operation.in_doubt = true;
      }
      if (committed.ok() && plan.only_purges) continue;
      return committed;
    }
    if (!doubts && batch.proven) {
      batch.answers = std::move(plan.answers);
      batch.ended = std::move(plan.ended);
      return {};
    }
    CAIRNFS_RETURN_IF_ERROR(Reload(batch, doubts));
  }
}

Status ClusterLocks::WriteGuard(Batch& batch, const Session& session) {
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  transaction.writes.push_back({LocksGuardKey(parts_.membership.self()), "", session.lease});
  CAIRNFS_RETURN_IF_ERROR(parts_.fenced.Commit(transaction));
  batch.answer_lost = false;
  return {};
}

Result<ClusterLocks::Session> ClusterLocks::SessionOf(const Batch& batch) const {
  // In this order: a session that was made anew is seen only after ForgetAll.
  Result<Session> session = parts_.membership.session();
  MutexLock lock(mutex_);
  if (epoch_ != batch.epoch) return LocksLost();
  return session;
}

ClusterLocks::Plan ClusterLocks::MakePlan(const Batch& batch) {
  const LockSession& self = batch.session;
  Plan plan;
  plan.inode = batch.inode;
  plan.table = batch.record.table;
  for (const auto& [ticket, lock] : batch.waiters) {
    if (plan.table.FindWaiting(self, ticket) != nullptr) continue;
    if (plan.table.Covers(lock)) {
      plan.ended.emplace(ticket, Answer{});
    } else {
      plan.ended.emplace(ticket, LocksLost());
    }
  }
  if (batch.session_keys_read) PurgeDead(batch, self, plan);
  if (plan.only_purges) return plan;
  plan.answers.resize(batch.operations.size());
  for (size_t i = 0; i < batch.operations.size(); ++i) Apply(batch.operations[i], self, i, plan);
  return plan;
}

void ClusterLocks::PurgeDead(const Batch& batch, const LockSession& self, Plan& plan) {
  bool purged = false;
  for (const LockSession& session : plan.table.Sessions()) {
    auto key = batch.session_keys.find(session.node);
    if (session == self || key == batch.session_keys.end() || key->second == session.revision) continue;
    if (plan.compares.size() == kPurgedAtOnceMax) {
      plan.only_purges = true;
      break;
    }
    plan.table.RemoveSession(session);
    plan.compares.push_back({kv::Compare::Kind::kRevisionIs, cluster::SessionKey(session.node), {}, key->second});
    purged = true;
  }
  if (purged) Grant(self, plan);
}

void ClusterLocks::Apply(const Operation& operation, const LockSession& self, size_t index, Plan& plan) {
  FileLock lock = operation.lock;
  lock.owner.session = self;
  Answer answer;
  switch (operation.kind) {
    case Operation::Kind::kTry:
    case Operation::Kind::kWait: return ApplyLock(operation, self, index, plan);
    case Operation::Kind::kUnlock:
      plan.table.Unset(lock.owner, lock.start, lock.last);
      Grant(self, plan);
      break;
    case Operation::Kind::kReleaseHandle:
      plan.table.UnsetHandle(self, lock.handle);
      Grant(self, plan);
      break;
    case Operation::Kind::kTest:
      if (const FileLock* holder = plan.table.Conflict(lock)) {
        plan.blocked = true;
        answer.holder = *holder;
      }
      break;
    case Operation::Kind::kCancel: {
      auto ended = plan.ended.find(operation.ticket);
      // Neither waiting nor granted: a try before this one took it away.
      const bool was_cancelled = ended != plan.ended.end() && !ended->second.ok();
      if (was_cancelled || plan.table.FindWaiting(self, operation.ticket) != nullptr) {
        plan.table.RemoveWaiting(self, operation.ticket);
        Grant(self, plan);  // one that a full record had no room for
        plan.ended.insert_or_assign(operation.ticket, Answer{Outcome::kInterrupted, {}});
      }
      break;
    }
    case Operation::Kind::kSweep: plan.blocked = true; break;
  }
  plan.answers[index] = std::move(answer);
}

void ClusterLocks::ApplyLock(const Operation& operation, const LockSession& self, size_t index, Plan& plan) {
  FileLock wanted = operation.lock;
  wanted.owner.session = self;
  const bool waits = operation.kind == Operation::Kind::kWait;
  if (waits && plan.table.FindWaiting(self, operation.ticket) != nullptr) return;  // an earlier try put it there
  if (wanted.owner.kind == LockKind::kFlock) {
    auto is_mine = [&](const FileLock& held) { return held.owner == wanted.owner; };
    const auto mine = std::find_if(plan.table.held().begin(), plan.table.held().end(), is_mine);
    if (mine != plan.table.held().end() && mine->type == wanted.type) {
      plan.answers[index] = Answer{};
      return;
    }
    // flock(2): a conversion removes the old lock first, and does not bring it back.
    plan.table.Unset(wanted.owner, wanted.start, wanted.last);
    Grant(self, plan);
  }
  if (const FileLock* holder = plan.table.Conflict(wanted)) {
    plan.blocked = true;
    if (!waits) {
      plan.answers[index] = Answer{Outcome::kWouldBlock, *holder};
    } else if (wanted.owner.kind == LockKind::kRecord && ClosesCycle(plan, wanted, operation.ticket)) {
      plan.answers[index] = Answer{Outcome::kDeadlock, *holder};
    } else if (Status added = plan.table.AddWaiting({operation.ticket, wanted}); !added.ok()) {
      plan.answers[index] = added.error();
    }
    return;
  }
  if (Status set = plan.table.Set(wanted); !set.ok()) {
    plan.answers[index] = set.error();
    return;
  }
  if (waits) {
    MutexLock lock(mutex_);
    DropEdge(wanted.owner.number, operation.ticket);  // of a try that found somebody in the way
  }
  // An exclusive lock may have become a shared one.
  Grant(self, plan);
  plan.answers[index] = Answer{};
}

void ClusterLocks::Grant(const LockSession& self, Plan& plan) {
  for (const WaitingLock& granted : plan.table.GrantWaiting()) {
    if (granted.lock.owner.session == self) plan.ended.insert_or_assign(granted.ticket, Answer{});
  }
}

Status ClusterLocks::Reload(Batch& batch, bool with_session_keys) {
  std::vector<kv::KvSpan> spans{{LocksKey(batch.inode), {}}, {LocksGuardKey(parts_.membership.self()), {}}};
  std::set<cluster::NodeId> nodes;
  if (with_session_keys) {
    for (const LockSession& session : batch.record.table.Sessions()) nodes.insert(session.node);
  }
  for (const cluster::NodeId& node : nodes) spans.push_back({cluster::SessionKey(node), {}});
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, parts_.fenced.Read(spans));
  Record record;
  record.as_of = snapshot.revision;
  if (const auto& entries = snapshot.ranges[0].entries; !entries.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(record.table, LockTable::Decode(entries[0].value));
    record.key_revision = entries[0].revision;
  }
  const auto revision_of = [&](size_t span) {
    const auto& entries = snapshot.ranges[span].entries;
    return entries.empty() ? 0 : entries[0].revision;
  };
  batch.guard_revision = revision_of(1);
  batch.session_keys.clear();
  size_t span = 2;
  for (const cluster::NodeId& node : nodes) batch.session_keys[node] = revision_of(span++);
  batch.session_keys_read = with_session_keys;
  batch.record = std::move(record);
  batch.proven = true;
  return {};
}

Status ClusterLocks::CommitPlan(Batch& batch, const Session& session, Plan& plan) {
  const std::string key = LocksKey(batch.inode);
  kv::Transaction transaction;
  // The session beside the fence's own compare of it: the entries name this one, not the one that may follow it.
  transaction.IfRevision(key, batch.record.key_revision).IfRevision(session.key, session.revision);
  transaction.IfRevision(LocksGuardKey(parts_.membership.self()), batch.guard_revision);
  for (const kv::Compare& compare : plan.compares) transaction.compares.push_back(compare);
  if (plan.table.empty()) {
    transaction.Delete(key);
  } else {
    transaction.Put(key, plan.table.Encode());
  }
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, parts_.fenced.Commit(transaction));
  batch.record.key_revision = plan.table.empty() ? 0 : revision;
  batch.record.as_of = revision;
  batch.record.table = std::move(plan.table);
  batch.proven = true;
  batch.answers = std::move(plan.answers);
  batch.ended = std::move(plan.ended);
  return {};
}

bool ClusterLocks::Pause(const Batch& batch, unsigned failures) {
  const auto until = std::chrono::steady_clock::now() + std::min(kPauseMin * (1 << std::min(failures, 10U)), kPauseMax);
  MutexLock lock(mutex_);
  while (!ending_ && epoch_ == batch.epoch) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    changed_.WaitFor(mutex_, left);
  }
  return !ending_;
}

bool ClusterLocks::Doubtful(const LockTable& table) const {
  const cluster::ViewPtr view = parts_.membership.view();
  const Result<Session> own = parts_.membership.session();
  for (const LockSession& session : table.Sessions()) {
    if (session.node == parts_.membership.self()) {
      if (own.ok() && own->revision != session.revision) return true;
      continue;
    }
    const cluster::NodeInfo* node = view->Find(session.node);
    if (node == nullptr || node->session != session.revision) return true;
  }
  return false;
}

std::vector<uint64_t> ClusterLocks::BlockersOf(const LockTable& table, const FileLock& lock) {
  std::vector<uint64_t> blockers;
  for (const FileLock* held : table.Conflicts(lock)) {
    if (held->owner.session == lock.owner.session) blockers.push_back(held->owner.number);
  }
  return blockers;
}

bool ClusterLocks::ClosesCycle(const Plan& plan, const FileLock& wanted, Ticket ticket) {
  const uint64_t owner = wanted.owner.number;
  std::vector<uint64_t> blockers = BlockersOf(plan.table, wanted);
  MutexLock lock(mutex_);
  DropEdge(owner, ticket);
  std::set<uint64_t> seen;
  std::vector<uint64_t> left = blockers;
  while (!left.empty()) {
    const uint64_t next = left.back();
    left.pop_back();
    if (next == owner) return true;
    if (!seen.insert(next).second) continue;
    LockOwner blocker = wanted.owner;
    blocker.number = next;
    for (const WaitingLock& waiting : plan.table.waiting()) {
      if (waiting.lock.owner != blocker) continue;
      const std::vector<uint64_t> more = BlockersOf(plan.table, waiting.lock);
      left.insert(left.end(), more.begin(), more.end());
    }
    auto [edge, end] = edges_.equal_range(next);
    for (; edge != end; ++edge) {
      const WaitEdge& wait = edge->second;
      if (wait.inode != plan.inode) left.insert(left.end(), wait.blockers.begin(), wait.blockers.end());
    }
  }
  SetEdge(owner, {plan.inode, ticket, std::move(blockers)});
  return false;
}

void ClusterLocks::SetEdge(uint64_t owner, WaitEdge edge) {
  DropEdge(owner, edge.ticket);
  edges_.emplace(owner, std::move(edge));
}

void ClusterLocks::DropEdge(uint64_t owner, Ticket ticket) {
  auto [edge, end] = edges_.equal_range(owner);
  for (; edge != end; ++edge) {
    if (edge->second.ticket == ticket) {
      edges_.erase(edge);
      return;
    }
  }
}

}  // namespace cairnfs::coherence
