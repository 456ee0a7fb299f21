// SessionState: whether this host's session lives, as far as the host can know. Any thread.
//
//   none --Begin--> live --(the lease's end passes)--> unsure --Extend--> live
//                   live or unsure --Lose--> lost --Begin--> live
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "cluster/membership.h"

namespace cairnfs::cluster {

class SessionState {
 public:
  // `answers`: of the store that says whether the session lives; null: nobody ends its calls.
  explicit SessionState(std::shared_ptr<kv::AnswerWatch> answers = nullptr) : answers_(std::move(answers)) {}

  // Takes the key, revision and lease of `session` and gives it the next number. `lease_end`, here and below: in
  // Clock::SinceBoot, at which the lease may end at the earliest.
  void Begin(Membership::Session session, std::chrono::nanoseconds lease_end);
  // Without effect unless the session of this number is there.
  void Extend(uint64_t number, std::chrono::nanoseconds lease_end);
  // Whether it was there until now.
  bool Lose(uint64_t number, const std::string& why);

  // As Membership's functions of these names.
  Result<Membership::Session> Get() const;
  Result<Membership::Session> Wait(const Context& context) const;
  bool LeaseHolds() const;

  unsigned waiting_count() const { return waiting_count_; }  // threads that are in Wait and did not return at once

  // The session, live or unsure; nullopt: lost, or none was made yet.
  std::optional<Membership::Session> Current() const;

 private:
  Result<Membership::Session> GetLocked() const REQUIRES_LOCK(mutex_);

  const std::shared_ptr<kv::AnswerWatch> answers_;
  // Nanoseconds of Clock::SinceBoot; 0 while there is no session. Changed under the mutex, read without.
  std::atomic<int64_t> lease_end_{0};
  mutable std::atomic<unsigned> waiting_count_{0};

  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool has_session_ GUARDED_BY(mutex_) = false;
  Membership::Session session_ GUARDED_BY(mutex_);
  std::string why_lost_ GUARDED_BY(mutex_) = "none was made yet";
};

}  // namespace cairnfs::cluster
