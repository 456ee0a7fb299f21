// The gate, and how one rank's call of it runs.
#include "control/rank_gate.h"

#include <fmt/format.h>

#include <random>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "control/rank_gate_visit.h"

namespace cairnfs::control {
namespace {

// A watch tells every change of the state. It does not tell that the record of a rank is gone, or that a rank hangs
// between coming and counting (Visit::IsToCount). So a call looks again this often.
constexpr auto kLookAgainInterval = std::chrono::seconds(5);
constexpr auto kWithdrawAgainInterval = std::chrono::seconds(1);
constexpr size_t kRememberedRanksMax = 4096;
constexpr size_t kWithdrawingMax = 4096;

uint64_t RandomNumber() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

Status CheckCall(const GateCall& call) {
  auto wrong = [](std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); };
  if (call.ranks == 0 || call.ranks > GateCall::kRanksMax) {
    return wrong(fmt::format("the number of ranks must lie between 1 and {}, not {}", GateCall::kRanksMax, call.ranks));
  }
  if (call.rank && *call.rank >= call.ranks) {
    return wrong(
        fmt::format("rank {} of {} ranks: they are numbered from 0 to {}", *call.rank, call.ranks, call.ranks - 1));
  }
  if (!call.rank && call.id.empty()) return wrong("a rank needs a number or a name of its own");
  if (call.id.size() > GateCall::kNameBytesMax) {
    return wrong(fmt::format("a rank's name may have {} bytes, not {}", GateCall::kNameBytesMax, call.id.size()));
  }
  if (call.final_name.size() > GateCall::kNameBytesMax) {
    return wrong(
        fmt::format("the final name may have {} bytes, not {}", GateCall::kNameBytesMax, call.final_name.size()));
  }
  if (call.timeout < std::chrono::milliseconds(0) || call.timeout > GateCall::kTimeoutMax) {
    return wrong(fmt::format("the timeout must be at most {} h", GateCall::kTimeoutMax.count()));
  }
  return {};
}

// Whether the transaction may have run. When the session is gone it did not, and never can.
bool IsUnknown(const Result<uint64_t>& committed) {
  return !committed.ok() && committed.error().code != ErrorCode::kStale && kv::MayHaveRun(committed.error().code);
}

// Raised by a watch, waited for by the call.
class Signal {
 public:
  kv::WatchCallbacks Callbacks() {
    return {[this](std::vector<kv::KvEvent>, uint64_t) { Raise(); }, [this](uint64_t) { Raise(); }};
  }
  uint64_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  // Waits until it was raised more than `seen` times, or until `until`. kInterrupted: `cancelled` said so.
  Status Await(uint64_t seen, Clock::time_point until, const std::function<bool()>& cancelled) {
    while (count() <= seen && Clock::Now() < until) {
      if (cancelled()) return MakeError(ErrorCode::kInterrupted, "the commit was interrupted");
      WaitPast(seen, std::min(until, Clock::Now() + kCancelledInterval));
    }
    return {};
  }

 private:
  void Raise() {
    MutexLock lock(mutex_);
    ++count_;
    raised_.NotifyAll();
  }
  void WaitPast(uint64_t seen, Clock::time_point until) {
    MutexLock lock(mutex_);
    while (count_ <= seen) {
      const auto left = until - Clock::Now();
      if (left <= Clock::duration::zero() || !raised_.WaitFor(mutex_, left)) return;
    }
  }

  Mutex mutex_;
  CondVar raised_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

RankGate::RankGate(Options options)
    : options_(std::move(options)), incarnation_(RandomNumber()), withdrawals_([this] { RunWithdrawals(); }) {}

RankGate::~RankGate() {
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    withdrawing_changed_.NotifyAll();
  }
  withdrawals_.join();
}

Status RankGate::Commit(const GateCall& call, const Caller& caller) {
  CAIRNFS_RETURN_IF_ERROR(CheckCall(call));
  uint64_t number;
  {
    MutexLock lock(mutex_);
    number = next_call_++;
    live_calls_.insert(number);
  }
  auto visit = std::make_shared<Visit>(*this, call, number);
  Status result = visit->Run(caller);
  if (auto withdrawn = visit->Withdraw(); !withdrawn.ok()) {
    spdlog::warn("cannot take a rank from the gate of directory {} yet: {}", call.directory.value,
                 withdrawn.error().message);
    WithdrawLater(std::move(visit));
  } else if (visit->is_committed()) {
    result = {};  // whatever ended the call, the other ranks had the directory renamed meanwhile
  }
  MutexLock lock(mutex_);
  live_calls_.erase(number);
  // A rank that is forgotten here may be told once more that it is late.
  if (last_ended_.size() >= kRememberedRanksMax) last_ended_.clear();
  last_ended_[std::hash<std::string>()(GateRankKey(call.directory, call.rank, call.id))] = {number, result.ok()};
  return result;
}

void RankGate::WithdrawLater(std::shared_ptr<Visit> visit) {
  MutexLock lock(mutex_);
  // The call's record goes with the session, at the latest.
  if (withdrawing_.size() >= kWithdrawingMax) withdrawing_.pop_front();
  withdrawing_.push_back(std::move(visit));
  withdrawing_changed_.NotifyAll();
}

void RankGate::RunWithdrawals() {
  MutexLock lock(mutex_);
  while (!is_stopping_) {
    if (withdrawing_.empty()) {
      withdrawing_changed_.Wait(mutex_);
      continue;
    }
    std::shared_ptr<Visit> visit = std::move(withdrawing_.front());
    withdrawing_.pop_front();
    lock.Unlock();
    const bool is_withdrawn = visit->Withdraw().ok();
    lock.Lock();
    if (is_withdrawn) continue;
    withdrawing_.push_back(std::move(visit));
    if (!is_stopping_) static_cast<void>(withdrawing_changed_.WaitFor(mutex_, kWithdrawAgainInterval));
  }
}

bool RankGate::IsLive(uint64_t call) {
  MutexLock lock(mutex_);
  return live_calls_.contains(call);
}

std::optional<RankGate::Ended> RankGate::LastEnded(const std::string& rank_key) {
  MutexLock lock(mutex_);
  const auto found = last_ended_.find(std::hash<std::string>()(rank_key));
  return found == last_ended_.end() ? std::nullopt : std::optional(found->second);
}

Status RankGate::Visit::Run(const Caller& caller) {
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const Arrival arrival, ArriveInTheEnd(caller));
    if (arrival == Arrival::kCommitted) return {};
    if (arrival == Arrival::kCame) {
      // It was late for a rename. The other ranks waited for the same one for as long, so it gives them the time to
      // come.
      if (late_for_ != 0) deadline_ = Clock::Now() + call_.timeout;
      return AwaitOthers(caller);
    }
    if (outcome_) return *outcome_;
    CAIRNFS_RETURN_IF_ERROR(AwaitChange(caller));
  }
}

Result<RankGate::Visit::Arrival> RankGate::Visit::ArriveInTheEnd(const Caller& caller) {
  for (;;) {
    Result<Arrival> arrived = Arrive(caller);
    if (arrived.ok()) return arrived;
    const ErrorCode code = arrived.error().code;
    if (code == ErrorCode::kAlreadyExists) {
      if (!EarlierCallEnds(caller.cancelled)) return arrived;
    } else if (((code == ErrorCode::kUnavailable || code == ErrorCode::kStale) && (may_have_come_ || late_for_ != 0)) ||
               (code == ErrorCode::kStale && Clock::Now() < deadline_)) {
      // It does not give up on its own: the others may count this rank, or are at the rename that it waits for. And a
      // host whose session is lost takes a new one.
      if (caller.cancelled()) return MakeError(ErrorCode::kInterrupted, "the commit was interrupted");
      Clock::SleepFor(kCancelledInterval);
    } else if (code != ErrorCode::kConflict) {
      return arrived;
    }
    if (EarlierCallCommitted()) return Arrival::kCommitted;  // the gate may be gone
  }
}

// For a rank that is late. Waits, for a while at most, until the state or the elected rank has changed since it looked.
Status RankGate::Visit::AwaitChange(const Caller& caller) {
  Signal signal;
  const auto watch = gate_.options_.watched.Watch(state_key_, ranks_begin_, late_revision_, signal.Callbacks());
  const bool is_away = !watch.ok() && watch.error().code == ErrorCode::kUnavailable;
  if (!watch.ok() && !is_away) return watch.error();
  return signal.Await(0, Clock::Now() + (is_away ? kCancelledInterval : kLookAgainInterval), caller.cancelled);
}

Status RankGate::Visit::AwaitOthers(const Caller& caller) {
  Signal signal;
  CAIRNFS_ASSIGN_OR_RETURN(const std::unique_ptr<kv::KvWatch> watch,
                           gate_.options_.watched.Watch(state_key_, ranks_begin_, own_revision_, signal.Callbacks()));
  for (;;) {
    const uint64_t seen = signal.count();
    Status result = Evaluate(caller);
    if (outcome_) return *outcome_;
    auto again = Clock::Now() + kLookAgainInterval;
    if (!result.ok()) {
      const ErrorCode code = result.error().code;
      if (code == ErrorCode::kConflict) continue;
      if (code != ErrorCode::kUnavailable && code != ErrorCode::kStale) return result;
      again = Clock::Now() + kCancelledInterval;
    } else if (deadline_ > Clock::Now()) {
      again = std::min(again, deadline_);
    }
    CAIRNFS_RETURN_IF_ERROR(signal.Await(seen, again, caller.cancelled));
  }
}

// In whole seconds.
Timestamp RankGate::Visit::WallClock() { return {Clock::WallTime().seconds, 0}; }

std::string RankGate::Visit::RankName(const GateCall& call) {
  return call.rank ? fmt::format("rank {}", *call.rank) : fmt::format("rank \"{}\"", call.id);
}

Result<RankGate::Visit::Seen> RankGate::Visit::Look() {
  const std::vector<kv::KvSpan> spans = {{state_key_, {}, 0}, {elected_key_, {}, 0}, {own_key_, {}, 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(spans));
  Seen seen;
  seen.revision = snapshot.revision;
  for (const kv::KvEntry& entry : snapshot.ranges[0].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.state, DecodeGateState(entry.value));
    seen.state_revision = entry.revision;
  }
  for (const kv::KvEntry& entry : snapshot.ranges[1].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.elected, DecodeGateVisitor(entry.value));
    seen.elected_revision = entry.revision;
  }
  for (const kv::KvEntry& entry : snapshot.ranges[2].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.own, DecodeGateVisitor(entry.value));
    seen.own_revision = entry.revision;
  }
  return seen;
}

Status RankGate::Visit::Commit(const kv::Transaction& transaction) {
  auto committed = store_.Commit(transaction);
  if (!committed.ok()) return committed.error();
  return {};
}

// Commits a transaction that records that this rank waits.
Status RankGate::Visit::CommitArrival(kv::Transaction transaction) {
  transaction.operation_id = fmt::format("gate/{:x}/{}/{}", gate_.incarnation_, call_number_, ++arrivals_);
  auto came = store_.Commit(transaction);
  if (came.ok()) own_revision_ = *came;
  if (IsUnknown(came)) unsettled_arrival_ = transaction.operation_id;
  may_have_come_ |= came.ok() || IsUnknown(came);
  if (!came.ok()) return came.error();
  return {};
}

// After the answer to the arrival was lost, that transaction may run yet, after anything that is seen now. Another one
// with its operation id, which writes nothing, finds out whether it ran, or rules it out.
Status RankGate::Visit::SettleArrival() {
  if (unsettled_arrival_.empty()) return {};
  kv::Transaction nothing;
  nothing.operation_id = unsettled_arrival_;
  auto settled = store_.Commit(nothing);
  if (IsUnknown(settled)) return settled.error();
  unsettled_arrival_.clear();
  return {};
}

GateVisitor RankGate::Visit::OwnVisitor(bool waits) const {
  return {generation_, waits, gate_.options_.host, gate_.incarnation_, call_number_};
}

Result<kv::KvWrite> RankGate::Visit::OwnRecord(bool waits) {
  CAIRNFS_ASSIGN_OR_RETURN(kv::LeaseId lease, gate_.options_.lease());
  return kv::KvWrite{own_key_, OwnVisitor(waits).Encode(), lease};
}

// Whether the record is this call's, not only this rank's.
bool RankGate::Visit::IsOwn(const std::optional<GateVisitor>& visitor) const {
  return visitor && visitor->incarnation == gate_.incarnation_ && visitor->call == call_number_;
}

// True for a call of this daemon that is over. Those of other daemons go with their session.
bool RankGate::Visit::IsGone(const GateVisitor& visitor) const {
  return visitor.incarnation == gate_.incarnation_ && !gate_.IsLive(visitor.call);
}

}  // namespace cairnfs::control
