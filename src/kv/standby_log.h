// StandbyLog: the primary's side. It has the standby take each batch before the primary writes it, so that nobody reads
// what the standby lacks. It detaches a standby that does not answer, which a majority of the voters must know before
// anything is acknowledged without it; and brings one that fell behind up to the primary again.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "kv/follower.h"
#include "kv/names_register.h"
#include "kv/store_log.h"

namespace cairnfs::kv {

class StandbyLog final : public StoreLog {
 public:
  struct Parts {
    KvEngine& engine;  // of the names
    std::string self;  // node
    VoterOf voters;
    // Calls to the standby; never null.
    std::function<std::shared_ptr<FollowerCalls>(const Member& standby)> follower;
    std::chrono::milliseconds append_wait{3'000};  // for the standby, before it is detached
    size_t log_bytes_max = 64 << 20;               // of batches that a standby which is behind may still ask for
  };
  explicit StandbyLog(Parts parts) : parts_(std::move(parts)) {}

  Status BeforeWrite(const LogEntry& entry) override;
  Status WriteFailed() override;
  Status MayAnswer() const override;

  // This host is the primary by what was chosen, from now on or still. The first time before the store is opened.
  void Lead(const Chosen& chosen) EXCLUDES_LOCK(mutex_);
  // It is not, and never will be again in this process.
  void Fence(const std::string& why) EXCLUDES_LOCK(mutex_);
  bool IsFenced() const { return is_fenced_; }
  // What was chosen last, of a primary that does not go alone. What it proposes or renews goes through here.
  std::optional<Chosen> chosen() const EXCLUDES_LOCK(mutex_);
  // Has the voters hear of this primary again. Where that does not do, asks what the register is now, and leads or is
  // fenced by that.
  Status KeepLease(const Context& context);
  // Changes the register, and leads by what it is then. As kv::Propose.
  Result<Chosen> Change(const Context& context, const std::function<Result<Register>(const Register& now)>& change);

  // One step of bringing the standby up to this host: true, there is more to do at once. To be called by one thread,
  // again and again.
  bool CatchUp(const Context& context);
  // Of the standby, as it told last; {0, 0}: it has told nothing, or has no whole copy.
  Position follower_position() const EXCLUDES_LOCK(mutex_);

  void Stop() { stop_.request_stop(); }  // ends all waits of BeforeWrite

 private:
  // Whether the standby has each batch before it is written: while it is whole, and while it may be about to be.
  enum class Mode { kAlone, kBehind, kShipping };

  Status Ship(const LogEntry& entry) REQUIRES_LOCK(ship_mutex_);
  Status Detach(const Context& context, const std::string& why) REQUIRES_LOCK(ship_mutex_);
  void Remember(const LogEntry& entry) REQUIRES_LOCK(ship_mutex_);
  void ForgetOldest() REQUIRES_LOCK(ship_mutex_);
  void ForgetAll() REQUIRES_LOCK(ship_mutex_);
  Result<bool> ReachesBackTo(const Position& at) REQUIRES_LOCK(ship_mutex_);
  Status CopyAll(const Context& context);
  Status SendPiece(const Context& context, CopyPiece& piece, std::string end);
  Result<bool> SendLog(const Context& context, const Position& from);
  Status Attach(const Context& context);
  Result<Position> Append(const Context& context, const std::vector<LogEntry>& entries);
  Proposal ProposalOf(const Chosen& chosen) const;
  uint64_t Revision() const;
  bool HoldsLease() const;
  void SetMode(Mode mode) { mode_ = mode; }
  void ChangeMode(Mode from, Mode to) { mode_.compare_exchange_strong(from, to); }  // unless the standby was taken away

  const Parts parts_;
  std::stop_source stop_;
  std::atomic<bool> is_fenced_{false};
  std::atomic<Mode> mode_{Mode::kAlone};
  std::atomic<int64_t> lease_until_ns_{0};  // Clock::SinceBoot

  // Held while a batch is on its way to the standby, so that no other one is. Taken before the others.
  Mutex ship_mutex_;
  std::deque<LogEntry> log_ GUARDED_BY(ship_mutex_);  // without a gap
  size_t log_bytes_ GUARDED_BY(ship_mutex_) = 0;
  bool must_copy_ GUARDED_BY(ship_mutex_) = false;  // the standby may have what this host does not
  uint64_t copies_ GUARDED_BY(ship_mutex_) = 0;

  Mutex propose_mutex_;  // one proposal of this host at a time; taken before mutex_
  mutable Mutex mutex_;
  std::optional<Chosen> chosen_ GUARDED_BY(mutex_);
  Position follower_ GUARDED_BY(mutex_);
  std::string fenced_why_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::kv
