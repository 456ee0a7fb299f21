#include "cluster/session_state.h"

#include <algorithm>

#include "base/clock.h"

namespace cairnfs::cluster {

void SessionState::Begin(Membership::Session session, std::chrono::nanoseconds lease_end) {
  MutexLock lock(mutex_);
  session.number = session_.number + 1;
  session_ = std::move(session);
  has_session_ = true;
  lease_end_ = lease_end.count();
  changed_.NotifyAll();
}

void SessionState::Extend(uint64_t number, std::chrono::nanoseconds lease_end) {
  MutexLock lock(mutex_);
  if (!has_session_ || session_.number != number) return;
  lease_end_ = std::max<int64_t>(lease_end_, lease_end.count());
  changed_.NotifyAll();
}

bool SessionState::Lose(uint64_t number, const std::string& why) {
  MutexLock lock(mutex_);
  if (!has_session_ || session_.number != number) return false;
  has_session_ = false;
  lease_end_ = 0;
  why_lost_ = why;
  changed_.NotifyAll();
  return true;
}

bool SessionState::LeaseHolds() const { return std::chrono::nanoseconds(lease_end_) > Clock::SinceBoot(); }

Result<Membership::Session> SessionState::GetLocked() const {
  if (!has_session_) {
    return MakeError(ErrorCode::kStale, "this host's session with the cluster is lost: " + why_lost_);
  }
  if (!LeaseHolds()) {
    return MakeError(ErrorCode::kUnavailable,
                     "the cluster's store has not answered for as long as this host's lease lasts, so it is not known "
                     "whether its session lives");
  }
  return session_;
}

Result<Membership::Session> SessionState::Get() const {
  MutexLock lock(mutex_);
  return GetLocked();
}

Result<Membership::Session> SessionState::Wait(const Context& context) const {
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = session_.number;
    Result<Membership::Session> session = GetLocked();
    if (session.ok() || session.error().code != ErrorCode::kUnavailable) return session;
  }
  struct Counted {
    explicit Counted(std::atomic<unsigned>& the_count) : count(the_count) { count++; }
    ~Counted() { count--; }
    std::atomic<unsigned>& count;
  } const counted(waiting_count_);
  const kv::AnswerWatch::Call call(answers_.get());
  const Context within = answers_ == nullptr ? context : context.WithStop(answers_->ended());
  MutexLock lock(mutex_);
  const auto is_known = [&]() REQUIRES_LOCK(mutex_) {
    return session_.number != number || GetLocked().ok() || GetLocked().error().code != ErrorCode::kUnavailable;
  };
  static_cast<void>(within.Wait(mutex_, changed_, is_known));
  if (session_.number == number) return GetLocked();
  return MakeError(ErrorCode::kStale, "this host's session with the cluster was lost and made anew meanwhile");
}

std::optional<Membership::Session> SessionState::Current() const {
  MutexLock lock(mutex_);
  if (!has_session_) return std::nullopt;
  return session_;
}

}  // namespace cairnfs::cluster
