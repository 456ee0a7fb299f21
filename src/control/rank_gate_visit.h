// One rank's call of RankGate::Commit, private to src/control: rank_gate.cc runs it, rank_gate_arrival.cc lets the rank
// come, rank_gate_outcome.cc counts the others, renames, and leaves.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/rank_gate.h"
#include "control/rank_gate_records.h"

namespace cairnfs::control {

// One call of Commit. Its functions are called by one thread.
class RankGate::Visit {
 public:
  Visit(RankGate& gate, const GateCall& call, uint64_t call_number)
      : gate_(gate),
        store_(gate.options_.store),
        call_(call),
        call_number_(call_number),
        deadline_(Clock::now() + call.timeout),
        patient_until_(std::min(deadline_, Clock::now() + gate.options_.patience)),
        state_key_(GateStateKey(call.directory)),
        elected_key_(GateElectedKey(call.directory)),
        ranks_begin_(GateRanksPrefix(call.directory)),
        ranks_end_(kv::PrefixEnd(ranks_begin_)),
        own_key_(GateRankKey(call.directory, call.rank, call.id)) {}

  Status Run(const Rename& rename, const std::function<bool()>& cancelled);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kCancelledInterval = std::chrono::milliseconds(200);
  struct Seen {
    std::optional<GateState> state;
    uint64_t state_revision = 0;
    std::optional<GateVisitor> other;  // elected, or this rank's own record
    uint64_t other_revision = 0;
    uint64_t revision = 0;
  };

  static Timestamp WallClock();
  static Error Conflict() { return MakeError(ErrorCode::kConflict, ""); }
  static std::string RankName(const GateCall& call);
  Result<Seen> Look(const std::string& other_key);
  Status Commit(const kv::Transaction& transaction);
  Status CommitArrival(const kv::Transaction& transaction);
  Result<kv::KvWrite> OwnRecord(bool waits);
  GateVisitor OwnVisitor(bool waits) const;
  bool RenamerIsGone(const GateVisitor& renamer) const;
  Status AwaitOthers(const Rename& rename, const std::function<bool()>& cancelled);

  // All of these: kConflict when something changed since it was looked at.
  // rank_gate_arrival.cc
  Status Arrive();
  Status ArriveAt(const Seen& seen);
  bool EarlierCallEnds(const std::function<bool()>& cancelled);
  bool EarlierCallCommitted();
  Status Begin(const Seen& seen, uint32_t generation, const std::string& message,
               std::optional<uint64_t> ranks_revision = std::nullopt);
  Status TakeOver(const Seen& seen);
  Error Disagreement(const GateState& state) const;
  // rank_gate_outcome.cc
  Status Evaluate(const Rename& rename, bool& is_over);
  Status Gather(const Seen& seen, const Rename& rename, bool& is_over);
  Status GiveUp(const Seen& seen, const std::vector<unsigned>& present, size_t present_count, uint64_t ranks_revision);
  Status Elect(const Seen& seen, std::optional<uint64_t> ranks_revision);
  Status DoRename(const Rename& rename, bool& is_over);
  void Withdraw();
  void Leave(uint64_t done_revision);
  void Sweep();

  RankGate& gate_;
  kv::KvStore& store_;
  const GateCall& call_;
  const uint64_t call_number_;
  const Clock::time_point deadline_, patient_until_;
  const std::string state_key_, elected_key_, ranks_begin_, ranks_end_, own_key_;
  uint32_t generation_ = 0;
  uint64_t earlier_call_ = 0;                               // that waited as this rank, of this daemon; 0: none
  uint64_t own_revision_ = 0;                               // of the record of this rank's arrival
  bool is_over_ = false;                                    // the outcome is that of all ranks
  std::optional<std::pair<GateState, uint64_t>> renaming_;  // the state under which this rank renames, its revision
};

}  // namespace cairnfs::control
