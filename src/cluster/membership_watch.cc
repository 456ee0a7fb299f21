// What the store tells of the nodes, and of this host's own session.
#include "cluster/membership_impl.h"

namespace cairnfs::cluster {
namespace {

constexpr const char* kWentBack = "the cluster's store went back to an older state";

}  // namespace

ViewPtr MembershipImpl::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void MembershipImpl::Publish() {
  view_ = table_.MakeView();
  subscribers_->Tell();
}

// What was told up to `table_` says that the key is another's or none's. A table that is older than the session says
// nothing.
std::optional<std::string> MembershipImpl::WhyOwnSessionIsGone(const Session& session) const {
  if (table_.revision() < session.revision) return std::nullopt;
  const uint64_t there = table_.SessionRevision(options_.self.id);
  if (there == session.revision) return std::nullopt;
  return there == 0 ? "its lease ended, or it was revoked" : "another process took it over";
}

Status MembershipImpl::Reread() {
  MutexLock reread(reread_mutex_);
  const std::optional<Session> session = state_.Current();  // before the read, so that the read must show it
  bool went_back = false;
  {
    MutexLock lock(mutex_);
    is_rereading_ = true;
    must_reread_ = false;
  }
  Result<kv::KvRange> range = store_.Range(context_, MembersBegin(), MembersEnd(), 0);
  std::optional<std::string> why;
  {
    MutexLock lock(mutex_);
    is_rereading_ = false;
    auto meanwhile = std::exchange(told_meanwhile_, {});
    if (!range.ok()) {
      must_reread_ = true;
      return range.error();
    }
    table_.Reset(*range);
    if (session) {
      why = WhyOwnSessionIsGone(*session);
      went_back = range->revision < session->revision;
      if (went_back) why = kWentBack;
    }
    for (const auto& [events, revision] : meanwhile) table_.Apply(events, revision);
    Publish();
  }
  if (why) Lose(session->number, {*why, went_back});
  return {};
}

Status MembershipImpl::BeginWatch(uint64_t number, uint64_t revision) {
  uint64_t number_before;
  {
    MutexLock lock(mutex_);
    number_before = std::exchange(watch_number_, number);
    watch_revision_ = revision;
  }
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this, number](std::vector<kv::KvEvent> events, uint64_t at) {
    TakeEvents(number, std::move(events), at);
  };
  callbacks.lost = [this, number](uint64_t at) { WatchLost(number, at, /*went_back=*/false); };
  callbacks.went_back = [this, number](uint64_t at) { WatchLost(number, at, /*went_back=*/true); };
  auto watch = store_.Watch(context_, MembersBegin(), MembersEnd(), revision, std::move(callbacks));
  if (!watch.ok()) {
    MutexLock lock(mutex_);
    watch_number_ = number_before;
    must_reread_ = true;  // what it told meanwhile was not listened to
    return watch.error();
  }
  watch_ = *std::move(watch);
  return {};
}

void MembershipImpl::TakeEvents(uint64_t number, std::vector<kv::KvEvent> events, uint64_t revision) {
  const std::optional<Session> session = state_.Current();
  std::optional<std::string> why;
  {
    MutexLock lock(mutex_);
    if (number != watch_number_) return;
    watch_revision_ = revision;
    if (is_rereading_) {
      told_meanwhile_.emplace_back(std::move(events), revision);
      return;
    }
    if (must_reread_) return;  // what is known has a gap; the read that fills it comes after this
    table_.Apply(events, revision);
    if (session) why = WhyOwnSessionIsGone(*session);
    if (!events.empty()) Publish();
  }
  if (why) Lose(session->number, {*why});
}

void MembershipImpl::WatchLost(uint64_t number, uint64_t revision, bool went_back) {
  {
    MutexLock lock(mutex_);
    if (number != watch_number_) return;
    went_back |= revision < watch_revision_;
    watch_revision_ = revision;
    must_reread_ = true;
    wakes_ = true;
    wake_.NotifyAll();
  }
  // Whatever was read since that state may be otherwise now, under the same revisions.
  if (went_back) Lose(number, {kWentBack, true});
}

}  // namespace cairnfs::cluster
