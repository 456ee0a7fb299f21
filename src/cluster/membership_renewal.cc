// The thread that renews the lease, and the chores after each renewal: who is out, whether this node is full.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/membership_impl.h"

namespace cairnfs::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr size_t kOutFindersMax = 5;  // beyond this rank all try at once when nobody before them did

}  // namespace

void MembershipImpl::Run() {
  while (!context_.IsStopped()) {
    const nanoseconds began = Clock::SinceBoot();
    {
      MutexLock lock(mutex_);
      wakes_ = false;
    }
    Tick();
    const nanoseconds left = began + options_.renew_every - Clock::SinceBoot();
    MutexLock lock(mutex_);
    context_.WithTimeout(left).Wait(mutex_, wake_, [this] {
      mutex_.AssertHeld();
      return wakes_;
    });
  }
}

// The chores may wait for the store for long, while it still answers those who keep leases alive: a full disk lets each
// commit wait, and what tells the others that this node is full is a commit.
void MembershipImpl::Tick() {
  std::optional<Session> session = state_.Current();
  if (session && !Renew(*session)) session.reset();
  const nanoseconds passed = session ? PassedSinceRenewal(*session) : nanoseconds(0);
  if (chores_run_.exchange(true)) return;
  chores_thread_->Post([this, session, passed] {
    DoChores(session, passed);
    chores_run_ = false;
  });
}

// A pause of this process, or of the store, counts as one round: who was down could not come back, or not be seen.
nanoseconds MembershipImpl::PassedSinceRenewal(const Session& session) {
  const nanoseconds now = Clock::SinceBoot();
  const bool counts = renewed_at_.count() != 0 && renewed_session_ == session.number;
  const nanoseconds passed =
      counts ? std::min<nanoseconds>(now - renewed_at_, 2 * options_.renew_every) : nanoseconds(0);
  renewed_at_ = now;
  renewed_session_ = session.number;
  return passed;
}

void MembershipImpl::DoChores(const std::optional<Session>& session, nanoseconds passed) {
  if (context_.IsStopped()) return;
  bool must_reread;
  {
    MutexLock lock(mutex_);
    must_reread = must_reread_;
  }
  if (must_reread) {
    down_for_.clear();  // what happened meanwhile is not known: a node may have been up
    if (Status read = Reread(); !read.ok())
      spdlog::debug("the cluster's nodes cannot be read: {}", read.error().message);
  }
  if (!session || context_.IsStopped()) return;
  ApplyFull(*session);
  if (context_.IsStopped()) return;
  ApplyEmpty(*session);
  if (context_.IsStopped()) return;
  if (std::exchange(counted_session_, session->number) != session->number) down_for_.clear();
  CountDown(*session, passed);
}

bool MembershipImpl::Renew(const Session& session) {
  const nanoseconds sent = Clock::SinceBoot();
  Result<milliseconds> left = store_.KeepLeaseAlive(context_, session.lease);
  if (left.ok()) {
    state_.Extend(session.number, sent + *left - options_.lease / kLeaseMarginDivisor);
    renewals_++;
    if (renewal_fails_) spdlog::info("this host's lease is kept alive again");
    renewal_fails_ = false;
    return true;
  }
  if (context_.IsStopped()) return false;  // which says nothing of the store
  renewals_failed_++;
  if (left.error().code == ErrorCode::kNotFound) {
    Lose(session.number, {"its lease has ended"});
    return false;
  }
  if (!renewal_fails_) spdlog::warn("this host's lease cannot be kept alive now: {}", left.error().message);
  renewal_fails_ = true;
  return false;
}

void MembershipImpl::ApplyFull(const Session& session) {
  bool wanted;
  {
    MutexLock lock(mutex_);
    wanted = full_wanted_;
  }
  const bool told = full_session_ == session.number && full_told_;  // a session begins without
  if (wanted == told) return;
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  if (wanted) {
    PutUnderLease(transaction, Key(MemberKey::kFull), "", session.lease);
  } else {
    transaction.Delete(Key(MemberKey::kFull));
  }
  Result<uint64_t> revision = store_.Commit(context_, transaction);
  if (!revision.ok()) {  // tried again next time; a lost session shows by itself
    spdlog::debug("the others cannot be told whether this node is full: {}", revision.error().message);
    return;
  }
  full_session_ = session.number;
  full_told_ = wanted;
}

void MembershipImpl::ApplyEmpty(const Session& session) {
  bool is_empty;
  uint64_t drain;
  {
    MutexLock lock(mutex_);
    is_empty = is_empty_;
    drain = empty_drain_;
    const NodeInfo* self = view_->Find(options_.self.id);
    if (drain == 0 || self == nullptr || self->drain != drain || self->is_empty == is_empty) return;
  }
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  transaction.IfRevision(Key(MemberKey::kDrain), drain);
  transaction.Put(Key(MemberKey::kDrain), DrainRecord{is_empty}.Encode());
  if (!store_.Commit(context_, transaction).ok()) return;  // it was taken back, or is tried again next time
  if (is_empty) spdlog::info("this node was drained, and has nothing any more");
}

void MembershipImpl::CountDown(const Session& session, nanoseconds passed) {
  const ViewPtr view = this->view();
  std::map<NodeId, nanoseconds> down_for;
  size_t rank = 0;  // of this node among those that are up
  for (const NodeInfo& node : view->nodes) {
    if (node.state == NodeState::kUp && node.id < options_.self.id) rank++;
    if (node.state != NodeState::kDown || node.id == options_.self.id) continue;
    auto known = down_for_.find(node.id);
    down_for[node.id] = known == down_for_.end() ? nanoseconds(0) : known->second + passed;
  }
  down_for_ = std::move(down_for);
  // One after the other, so that a thousand nodes do not all write the same.
  const nanoseconds limit = options_.out_after + std::min(rank, kOutFindersMax) * options_.renew_every;
  for (const NodeInfo& node : view->nodes) {
    if (context_.IsStopped()) return;
    auto down = down_for_.find(node.id);
    if (down != down_for_.end() && down->second >= limit) MarkOut(session, node);
  }
}

void MembershipImpl::MarkOut(const Session& session, const NodeInfo& node) {
  kv::Transaction transaction;
  transaction.IfRevision(session.key, session.revision);
  transaction.IfExists(KeyOf(MemberKey::kNode, node.id));
  transaction.IfAbsent(SessionKey(node.id)).IfAbsent(KeyOf(MemberKey::kOut, node.id));
  transaction.Put(KeyOf(MemberKey::kOut, node.id), OutRecord{Clock::WallTime(), options_.self.id}.Encode());
  if (!store_.Commit(context_, transaction).ok()) return;  // it came back, somebody else wrote it, or it is tried again
  spdlog::warn("node {} ({}) is out: it was down for {} s", node.name, node.id.ToHex(),
               std::chrono::duration_cast<std::chrono::seconds>(options_.out_after).count());
}

}  // namespace cairnfs::cluster
