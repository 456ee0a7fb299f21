// Membership's one implementation, private to src/cluster: membership.cc begins and ends it, membership_session.cc
// takes sessions, membership_watch.cc hears what the store tells, membership_renewal.cc keeps the lease alive.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/context.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "cluster/membership.h"
#include "cluster/node_table.h"
#include "cluster/records.h"
#include "cluster/session_state.h"
#include "cluster/subscribers.h"

namespace cairnfs::cluster {

inline constexpr int kMemberAttemptsMax = 20;   // of a transaction that conflicts
inline constexpr int kLeaseMarginDivisor = 20;  // two clocks may differ in speed by this part of a lease

void PutUnderLease(kv::Transaction& transaction, std::string key, std::string value, kv::LeaseId lease);

class MembershipImpl final : public Membership {
 public:
  MembershipImpl(kv::SharedKvStore& store, const MembershipOptions& options);
  ~MembershipImpl() override;
  Status Start();

  const NodeId& self() const override { return options_.self.id; }
  ViewPtr view() const override;
  std::shared_ptr<void> OnChange(std::function<void(const ViewPtr&)> changed) override {
    return subscribers_->Add(std::move(changed));
  }
  Result<Session> session() const override { return state_.Get(); }
  Result<Session> WaitForSession(const Context& context) const override { return state_.Wait(context); }
  bool LeaseHolds() const override { return state_.LeaseHolds(); }
  void OnLost(std::function<void()> lost) override;
  Status Rejoin() override;
  void ReportLost(const Session& session, const Loss& loss) override { Lose(session.number, loss); }
  void SetFull(bool full) override;
  Status SetDrain(const NodeId& id, Drain drain) override;
  void SetEmpty(bool empty, uint64_t drain) override;
  Status Remove(const NodeId& id, Removal removal) override;
  Status Replace(const NodeId& id, PlaceName name) override;
  void ForgetAtEnd() override { forgets_at_end_ = true; }
  MembershipStats stats() const override;

 private:
  std::string Key(MemberKey kind) const { return KeyOf(kind, options_.self.id); }

  // --- Taking a session. ---
  struct OwnKeys {
    std::optional<kv::KvEntry> node, session, place;
    SessionRecord session_record;  // empty when there is none, or it does not decode
  };
  Result<OwnKeys> ReadOwnKeys();
  NodeRecord OwnRecord(const std::optional<PlaceRecord>& place) const;
  // kJoin: of a process that starts, and may take over the session of one that died.
  enum class Taking { kJoin, kRejoin };
  bool MayReplace(const OwnKeys& own, Taking taking) const;
  Result<OwnKeys> WaitForForeignSession(Taking taking);
  // The lease of the session that was replaced, 0 if none was.
  Result<kv::LeaseId> TakeSession(Taking taking);
  Result<uint64_t> CommitSession(const OwnKeys& own, kv::LeaseId lease);
  void Deregister(const Context& context, const Session& session);
  void Lose(uint64_t number, const Loss& loss);
  void NoteWentBack(uint64_t number);

  // --- What the store tells. ---
  Status Reread();
  // Tells of what comes after the session began; in place of the watch of the session before.
  Status BeginWatch(uint64_t number, uint64_t revision);
  // `number`: of the session with which the watch began.
  void TakeEvents(uint64_t number, std::vector<kv::KvEvent> events, uint64_t revision);
  void WatchLost(uint64_t number, uint64_t revision, bool went_back);
  std::optional<std::string> WhyOwnSessionIsGone(const Session& session) const REQUIRES_LOCK(mutex_);
  void Publish() REQUIRES_LOCK(mutex_);

  // --- On the thread that renews: nothing there may wait for the store but the renewals. ---
  void Run();
  void Tick();
  bool Renew(const Session& session);
  std::chrono::nanoseconds PassedSinceRenewal(const Session& session);
  // --- On the thread of chores. ---
  // `session`: if it was renewed just now, `passed` after it was before.
  void DoChores(const std::optional<Session>& session, std::chrono::nanoseconds passed);
  // Each of them may wait for the store for long: the end waits for one at most.
  void ApplyFull(const Session& session);
  void ApplyEmpty(const Session& session);
  void CountDown(const Session& session, std::chrono::nanoseconds passed);
  void MarkOut(const Session& session, const NodeInfo& node);

  // Constant.
  kv::SharedKvStore& store_;
  const MembershipOptions options_;
  const std::string place_;
  const uint64_t incarnation_;   // of this object: tells its own sessions from those of others
  bool has_registered_ = false;  // Start did: the node was not known before
  std::stop_source stop_;
  const Context context_{stop_.get_token()};  // of all that waits here

  SessionState state_;  // self-synchronised
  std::atomic<uint64_t> sessions_lost_{0}, renewals_{0}, renewals_failed_{0}, went_back_{0};
  std::atomic<uint64_t> went_back_number_{0};  // the latest session that it counts
  std::atomic<bool> forgets_at_end_{false};

  // Of the thread that renews alone.
  bool renewal_fails_ = false;
  std::chrono::nanoseconds renewed_at_{0};  // Clock::SinceBoot; 0: not yet in this session
  uint64_t renewed_session_ = 0;

  // Of the chores alone.
  std::map<NodeId, std::chrono::nanoseconds> down_for_;
  uint64_t counted_session_ = 0;  // number of the session under which `down_for_` was counted
  uint64_t full_session_ = 0;     // number of the session under which `full_told_` is so
  bool full_told_ = false;

  Mutex rejoin_mutex_;  // one Rejoin at a time; taken before the others
  Mutex reread_mutex_;  // one Reread at a time; taken before mutex_

  mutable Mutex mutex_;
  CondVar wake_;
  bool wakes_ GUARDED_BY(mutex_) = false;  // the next Tick is due now
  bool full_wanted_ GUARDED_BY(mutex_) = false;
  bool is_empty_ GUARDED_BY(mutex_) = false;
  uint64_t empty_drain_ GUARDED_BY(mutex_) = 0;  // revision of the drain for which `is_empty_` was found
  bool must_reread_ GUARDED_BY(mutex_) = false;
  NodeTable table_ GUARDED_BY(mutex_);
  bool is_rereading_ GUARDED_BY(mutex_) = false;
  // What was told while a Reread was under way: it may be newer than what that read.
  std::vector<std::pair<std::vector<kv::KvEvent>, uint64_t>> told_meanwhile_ GUARDED_BY(mutex_);
  uint64_t watch_number_ GUARDED_BY(mutex_) = 0;    // of the session with which the watch began
  uint64_t watch_revision_ GUARDED_BY(mutex_) = 0;  // up to which the watch told
  ViewPtr view_ GUARDED_BY(mutex_);
  std::function<void()> lost_ GUARDED_BY(mutex_);
  bool lost_untold_ GUARDED_BY(mutex_) = false;

  std::unique_ptr<Subscribers> subscribers_;
  std::unique_ptr<TaskQueue> lost_thread_;
  std::unique_ptr<TaskQueue> chores_thread_;
  std::atomic<bool> chores_run_{false};  // one at a time, and none waits
  std::unique_ptr<kv::KvWatch> watch_;
  std::thread thread_;
};

}  // namespace cairnfs::cluster
