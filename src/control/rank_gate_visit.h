// One rank's call of RankGate::Commit, private to src/control: rank_gate.cc runs it, rank_gate_arrival.cc lets the rank
// come, rank_gate_outcome.cc counts the others and renames, rank_gate_leaving.cc lets it go and takes gates down.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control/rank_gate.h"
#include "control/rank_gate_records.h"

namespace cairnfs::control {

// How often a call that waits looks whether anybody still wants it.
inline constexpr auto kCancelledInterval = std::chrono::milliseconds(200);

// One call of Commit. Its functions are called by one thread at a time. Those that return a Status or a Result act
// under compares of what they saw:
//   kConflict: something has changed since.
//   kUnavailable: nobody knows whether they acted.
//   kStale: they did not act, because the host's session is lost.
// After these three the call looks at the gate again, which says what to do next. Any other error ends the call.
class RankGate::Visit {
 public:
  Visit(RankGate& gate, const GateCall& call, uint64_t call_number)
      : gate_(gate),
        store_(gate.options_.store),
        call_(call),
        call_number_(call_number),
        deadline_(Clock::Now() + call.timeout),
        patient_until_(std::min(deadline_, Clock::Now() + gate.options_.patience)),
        state_key_(GateStateKey(call.directory)),
        elected_key_(GateElectedKey(call.directory)),
        ranks_begin_(GateRanksPrefix(call.directory)),
        ranks_end_(kv::PrefixEnd(ranks_begin_)),
        own_key_(GateRankKey(call.directory, call.rank, call.id)) {}

  Status Run(const Caller& caller);
  // To be called after Run. Afterwards nothing of this call counts any more. An error: that is not known; call it
  // again.
  Status Withdraw();
  // Whether the directory has its final name, as far as this call knows.
  bool is_committed() const { return is_committed_; }

 private:
  enum class Arrival {
    kCame,       // its record stands in the gate
    kLate,       // it has none: it waits for a rename for which it was not counted
    kCommitted,  // the directory has its final name already
  };
  struct Seen {
    uint64_t revision = 0;  // of the store
    std::optional<GateState> state;
    uint64_t state_revision = 0;
    std::optional<GateVisitor> elected;
    uint64_t elected_revision = 0;
    std::optional<GateVisitor> own;  // of this rank; perhaps of another call
    uint64_t own_revision = 0;
  };

  static Timestamp WallClock();
  static Error Conflict() { return MakeError(ErrorCode::kConflict, ""); }
  static std::string RankName(const GateCall& call);
  Result<Seen> Look();
  Status Commit(const kv::Transaction& transaction);
  Status CommitArrival(kv::Transaction transaction);
  Status SettleArrival();
  Result<kv::KvWrite> OwnRecord(bool waits);
  GateVisitor OwnVisitor(bool waits) const;
  bool IsOwn(const std::optional<GateVisitor>& visitor) const;
  bool IsGone(const GateVisitor& visitor) const;
  Result<Arrival> ArriveInTheEnd(const Caller& caller);
  Status AwaitOthers(const Caller& caller);
  Status AwaitChange(const Caller& caller);

  // rank_gate_arrival.cc
  Result<Arrival> Arrive(const Caller& caller);
  Status Join(const Seen& seen);
  Status ArriveAt(const Seen& seen);
  Result<Arrival> ArriveAtRename(const Seen& seen, const Caller& caller);
  Status ArriveAtFailed(const Seen& seen);
  bool EarlierCallEnds(const std::function<bool()>& cancelled);
  bool EarlierCallCommitted();
  Result<bool> IsCommitted(const Seen& seen, const Caller& caller);
  Status Begin(const Seen& seen, uint32_t generation, const std::string& message,
               std::optional<uint64_t> ranks_revision = std::nullopt);
  Status TakeOver(const Seen& seen);
  Status FailOfDisagreement(const Seen& seen);
  Result<std::optional<GateVisitor>> FindWaiting(const Seen& seen, const kv::KvRange& ranks) const;
  bool Agrees(const GateState& state) const;
  Error Disagreement(const GateState& state) const;
  // rank_gate_outcome.cc
  Status Evaluate(const Caller& caller);
  Status Gather(const Seen& seen, const Caller& caller);
  bool IsToCount() const;
  Status AwaitRename(const Seen& seen, const Caller& caller);
  void AwaitRenamer(const Seen& seen, const std::string& host);
  Status GiveUp(const Seen& seen, const std::vector<unsigned>& present, size_t present_count, uint64_t ranks_revision);
  Result<kv::KvRange> ReadRanks(const Seen& seen);
  Status BeElected(const Seen& seen, std::optional<uint64_t> ranks_revision, const Caller& caller);
  Status DoRename(GateState state, uint64_t state_revision, const Caller& caller);
  Status RecordDone(GateState state, uint64_t state_revision);
  Status Record(GateState state, uint64_t state_revision);
  // rank_gate_leaving.cc
  Status TryToWithdraw();
  Status Leave(const std::optional<GateState>& done, uint64_t state_revision);
  Status TakeDown(InodeId directory, const std::optional<GateState>& state, uint64_t state_revision);
  void Sweep();

  RankGate& gate_;
  kv::KvStore& store_;
  const GateCall call_;
  const uint64_t call_number_;
  // Of the generation in which it came: of one that came late, counted from then.
  Clock::time_point deadline_;
  const Clock::time_point patient_until_;
  const std::string state_key_, elected_key_, ranks_begin_, ranks_end_, own_key_;
  uint32_t generation_ = 0;
  std::optional<Status> outcome_;  // what this rank is told, once that is known
  uint64_t earlier_call_ = 0;      // that waited as this rank, of this daemon; 0: none
  uint64_t own_revision_ = 0;      // of the record of this rank's arrival
  unsigned arrivals_ = 0;
  std::string unsettled_arrival_;  // operation id of one that ran, or may run yet; empty: none
  bool may_have_come_ = false;     // its record was written, or may have been, and is not known to be gone
  bool is_committed_ = false;      // as the withdrawal found
  bool has_counted_ = false;       // the ranks, since it came: some were missing
  uint32_t late_for_ = 0;          // generation whose rename it found under way; 0: none
  uint64_t late_revision_ = 0;     // of the store, when it looked at that rename last
  bool has_renamed_ = false;
  uint64_t election_ = 0;  // revision of the state under which another rank was seen to rename, or to be to; since when
  Clock::time_point election_seen_;
};

}  // namespace cairnfs::control
