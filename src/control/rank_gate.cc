// The gate, and how one rank's call of it runs.
#include "control/rank_gate.h"

#include <fmt/format.h>

#include <random>

#include "control/rank_gate_visit.h"

namespace cairnfs::control {
namespace {

using Clock = std::chrono::steady_clock;

// A watch tells of every change; this is for a host that died between seeing all ranks and acting on it.
constexpr auto kLookAgainInterval = std::chrono::seconds(5);
constexpr size_t kRememberedRanksMax = 4096;

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
  return {};
}

// Raised by the watch, waited for by the call.
class Signal {
 public:
  uint64_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  void Raise() {
    MutexLock lock(mutex_);
    ++count_;
    raised_.NotifyAll();
  }
  // Until it was raised more than `seen` times, or `until`.
  void WaitPast(uint64_t seen, Clock::time_point until) {
    MutexLock lock(mutex_);
    while (count_ <= seen) {
      const auto left = until - Clock::now();
      if (left <= Clock::duration::zero() || !raised_.WaitFor(mutex_, left)) return;
    }
  }

 private:
  Mutex mutex_;
  CondVar raised_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace

RankGate::RankGate(Options options) : options_(std::move(options)), incarnation_(RandomNumber()) {}

Status RankGate::Commit(const GateCall& call, const Rename& rename, const std::function<bool()>& cancelled) {
  CAIRNFS_RETURN_IF_ERROR(CheckCall(call));
  uint64_t number;
  {
    MutexLock lock(mutex_);
    number = next_call_++;
    live_calls_.insert(number);
  }
  Status result = Visit(*this, call, number).Run(rename, cancelled);
  MutexLock lock(mutex_);
  live_calls_.erase(number);
  // Who is forgotten may be told once more that it is late.
  if (last_ended_.size() >= kRememberedRanksMax) last_ended_.clear();
  last_ended_[std::hash<std::string>()(GateRankKey(call.directory, call.rank, call.id))] = {number, result.ok()};
  return result;
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

Status RankGate::Visit::Run(const Rename& rename, const std::function<bool()>& cancelled) {
  for (;;) {
    Status arrived = Arrive();
    if (arrived.ok()) break;
    const ErrorCode code = arrived.error().code;
    const bool waits_already = code == ErrorCode::kAlreadyExists;
    if (waits_already ? !EarlierCallEnds(cancelled) : code != ErrorCode::kConflict) return arrived;
    if (EarlierCallCommitted()) return {};  // the gate may be gone
  }
  Status result = AwaitOthers(rename, cancelled);
  // Who is told of an error takes no part any more, whatever the others are told.
  if (!result.ok() && !is_over_) Withdraw();
  return result;
}

Status RankGate::Visit::AwaitOthers(const Rename& rename, const std::function<bool()>& cancelled) {
  Signal signal;
  // From now on is early enough: what came before is looked at below.
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange now, store_.Range(state_key_, ranks_begin_, 0));
  CAIRNFS_ASSIGN_OR_RETURN(const std::unique_ptr<kv::KvWatch> watch,
                           gate_.options_.watched.Watch(state_key_, ranks_begin_, now.revision,
                                                        {[&](std::vector<kv::KvEvent>, uint64_t) { signal.Raise(); },
                                                         [&](uint64_t) { signal.Raise(); }}));
  for (;;) {
    const uint64_t seen = signal.count();
    Status result = Evaluate(rename, is_over_);
    if (is_over_) return result;
    if (!result.ok()) continue;  // a conflict
    const auto again =
        std::min(deadline_ > Clock::now() ? deadline_ : Clock::time_point::max(), Clock::now() + kLookAgainInterval);
    while (signal.count() == seen && Clock::now() < again) {
      if (cancelled()) return MakeError(ErrorCode::kInterrupted, "the commit was interrupted");
      signal.WaitPast(seen, std::min(again, Clock::now() + kCancelledInterval));
    }
  }
}

Timestamp RankGate::Visit::WallClock() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration_cast<std::chrono::seconds>(since).count(), 0};
}

std::string RankGate::Visit::RankName(const GateCall& call) {
  return call.rank ? fmt::format("rank {}", *call.rank) : fmt::format("rank \"{}\"", call.id);
}

Result<RankGate::Visit::Seen> RankGate::Visit::Look(const std::string& other_key) {
  const std::vector<kv::KvSpan> spans = {{state_key_, {}, 0}, {other_key, {}, 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, store_.Read(spans));
  Seen seen;
  seen.revision = snapshot.revision;
  for (const kv::KvEntry& entry : snapshot.ranges[0].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.state, DecodeGateState(entry.value));
    seen.state_revision = entry.revision;
  }
  for (const kv::KvEntry& entry : snapshot.ranges[1].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.other, DecodeGateVisitor(entry.value));
    seen.other_revision = entry.revision;
  }
  return seen;
}

Status RankGate::Visit::Commit(const kv::Transaction& transaction) {
  auto committed = store_.Commit(transaction);
  if (!committed.ok()) return committed.error();
  return {};
}

// Of a transaction that writes that this rank waits.
Status RankGate::Visit::CommitArrival(const kv::Transaction& transaction) {
  CAIRNFS_ASSIGN_OR_RETURN(own_revision_, store_.Commit(transaction));
  return {};
}

GateVisitor RankGate::Visit::OwnVisitor(bool waits) const {
  return {generation_, waits, gate_.options_.host, gate_.incarnation_, call_number_};
}

Result<kv::KvWrite> RankGate::Visit::OwnRecord(bool waits) {
  CAIRNFS_ASSIGN_OR_RETURN(kv::LeaseId lease, gate_.options_.lease());
  return kv::KvWrite{own_key_, OwnVisitor(waits).Encode(), lease};
}

// True for a call of this daemon that is over. Those of other daemons go with their session.
bool RankGate::Visit::RenamerIsGone(const GateVisitor& renamer) const {
  return renamer.incarnation == gate_.incarnation_ && !gate_.IsLive(renamer.call);
}

}  // namespace cairnfs::control
