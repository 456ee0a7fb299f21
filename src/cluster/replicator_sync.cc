// Sync: what was put before the call has its copies.
#include "cluster/replicator.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kLookInterval{100};
constexpr std::chrono::milliseconds kFullPatience{1500};
constexpr std::chrono::seconds kHeldBackAfter{1};  // what names the chunks is made durable, and the next Sync begins

// Whether to wait on.
Status CheckSync(const SyncCall& call, const SyncPoint& point, const Shortage& shortage) {
  const Situation& situation = shortage.situation;
  if (call.store_ended.stop_requested()) {
    return shortage.ToError("this host is stopping, and the shared metadata does not answer");
  }
  if (call.context.IsStopped()) return MakeError(ErrorCode::kInterrupted, "nobody waits for the copies any more");
  const auto now = situation.now;
  if (call.context.IsLate()) {
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - call.begun_at);
    return shortage.ToError(waited.count() > 0 ? "waited " + std::to_string(waited.count()) + " s" : "waited in vain");
  }
  // As long as there is room, the many that may be under-replicated are not looked at.
  const bool is_short = situation.IsFullEverywhere() && point.IsShort(now, kFullPatience);
  return is_short ? shortage.ToError("no space") : Status();
}

}  // namespace

Status Replicator::WaitUntil(const SyncCall& call, const SyncPoint& point, const std::function<bool()>& is_reached) {
  for (;;) {
    if (is_reached()) return {};
    if (failure_) return *failure_;
    CAIRNFS_RETURN_IF_ERROR(CheckSync(call, point, {Now(), pending_.awaited().size()}));
    // Time alone makes a point short, and a failure is told by no chunk.
    static_cast<void>(call.context.WithTimeout(kLookInterval).Wait(mutex_, changed_, is_reached));
  }
}

// First what lies on this node's disk, so that its sync runs beside those of the others.
Status Replicator::AwaitPoint(const SyncCall& call, SyncPoint& point) {
  auto committed = std::make_shared<Answer<Status>>();
  bool must_commit = false, must_commit_again = false;
  Status waited;
  {
    MutexLock lock(mutex_);
    CAIRNFS_RETURN_IF_ERROR(WaitUntil(call, point, [&] { return point.IsPlaced(); }));
    const uint64_t late_before = late_commits_;
    must_commit = parts_.commit.uncommitted_count() > 0;
    if (must_commit) parts_.commit.Commit([committed](Status status) { committed->Set(std::move(status)); });
    const bool has_to_wait = point.scope() == SyncPoint::Scope::kCopies;
    if (has_to_wait) waited = WaitUntil(call, point, [&] { return point.HasCopies(); });
    must_commit_again = waited.ok() && late_commits_ != late_before && parts_.commit.uncommitted_count() > 0;
  }
  if (must_commit) {
    committed->Wait({});
    CAIRNFS_RETURN_IF_ERROR(committed->Take());
  }
  if (must_commit_again) CAIRNFS_RETURN_IF_ERROR(parts_.commit.CommitAndWait());
  return waited;
}

Result<Replicator::Unreadable> Replicator::Sync(const Context& context, SyncPoint::Scope scope,
                                                std::optional<std::span<const Digest>> only) {
  if (only && only->empty()) return Unreadable();
  // A node that is drained keeps nothing: what is saved there lies on others only.
  const ViewPtr view = parts_.membership.view();
  const NodeInfo* self = view->Find(self_);
  if (self != nullptr && self->is_drained()) scope = SyncPoint::Scope::kCopies;
  const SyncCall call{context.WithTimeout(options_.sync_wait_max), Clock::Now(),
                      options_.answers ? options_.answers->ended() : std::stop_token()};
  std::optional<SyncPoint> point;
  {
    MutexLock lock(mutex_);
    point.emplace(
        pending_, scope, [this](const Digest& digest) { return parts_.pins.IsPinned(digest); }, only);
    ++sync_waiters_;
    PumpReady();  // what waited for writers
    // Durable here is all that is asked for: who else has the chunk need not be known first.
    for (const auto& [sequence, chunk] : point->Chunks()) {
      if (scope == SyncPoint::Scope::kCopies) break;
      Apply(chunk, chunk->StoreHere());
    }
    if (only) {
      StoreFirst(point->Chunks());
    } else {
      StoreOthers();
    }
  }
  const Status status = AwaitPoint(call, *point);
  MutexLock lock(mutex_);
  --sync_waiters_;
  if (only && hold_) hold_->until = Clock::Now() + kHeldBackAfter;
  if (!status.ok()) return status.error();
  return point->TakeLeftOut();
}

}  // namespace cairnfs::cluster
