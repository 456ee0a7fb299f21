// One rank's call of RankGate::Commit, private to src/control.
//
// It looks at the gate, does what the state asks this rank to do, and waits for the state to change; then it looks
// again. rank_visit.cc has that loop, and how a rank comes and leaves; rank_outcome.cc counts the ranks and renames.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "control/rank_gate.h"
#include "control/rank_gate_records.h"

namespace cairnfs::control {

// Used by one thread. Its functions that return a Status act under compares of what they saw:
//   kConflict: to be looked at again, at once.
//   kUnavailable, kStale: the same in a moment: the store is away, or the host has no session.
// Any other error ends the call. Calls to the store take as long as the store lets them, whoever is gone meanwhile:
// what became of them must be known.
class RankVisit {
 public:
  // All outlive it.
  RankVisit(const RankGate::Options& gate, const GateCall& call, const RankGate::Caller& caller);
  RankVisit(const RankVisit&) = delete;
  Status Run();

 private:
  struct Seen {
    std::optional<GateState> state;
    uint64_t state_revision = 0;
    std::optional<GateRank> own;  // of this rank, once it has come; perhaps of a later call
    uint64_t own_revision = 0;
  };
  // Raised by the watch.
  class Signal {
   public:
    void Raise();
    // Until it was raised since the last wait, or `context` expires.
    void Await(const Context& context);

   private:
    Mutex mutex_;
    CondVar changed_;
    bool is_raised_ GUARDED_BY(mutex_) = false;
  };

  Status Meet();
  void AwaitChange();
  bool MayTryAgain(ErrorCode code) const;
  Result<Seen> Look();
  Result<uint64_t> Commit(kv::Transaction transaction);
  // With the record of this rank in that try, under the session of this host.
  Result<uint64_t> CommitWithRecord(kv::Transaction transaction, uint64_t try_id);

  // Before it has come.
  Status Come();
  Status Begin(const Seen& seen);
  Status Disagree(const Seen& seen);
  Status Arrive(kv::Transaction transaction, uint64_t try_id);
  // In the end.
  void Leave(Status& result);
  Status TryToLeave(Status& result);

  // rank_outcome.cc: in its try.
  Status TakePart();
  Status Gather(const Seen& seen);
  Status AwaitRename(const Seen& seen);
  void AwaitRenamer(const Seen& seen, const std::string& host);
  Status BecomeRenamer(const Seen& seen);
  Status Rename(GateState state, uint64_t state_revision);
  Status Record(const GateState& state, uint64_t state_revision);

  static Error LookAgain() { return MakeError(ErrorCode::kConflict, ""); }
  std::string NameForMessages() const;
  std::string OwnKey() const { return GateRanksPrefix(call_.directory, try_id_) + name_; }

  const RankGate::Options& gate_;
  const GateCall& call_;
  const RankGate::Caller& caller_;
  const uint64_t call_id_;  // random
  const std::string name_, state_key_;

  std::optional<Status> outcome_;  // what this rank is told, once that is known
  uint64_t try_id_ = 0;            // in which it has come; 0: it has not
  uint64_t late_for_ = 0;          // the try whose rename it found under way; 0: none
  bool has_counted_ = false;       // the ranks, since it came: some were missing
  Clock::time_point deadline_;     // by which it has come, and then the others
  unsigned commits_ = 0;           // for operation ids
  uint64_t renaming_ = 0;          // revision of the state under which another rank was seen to rename; since when
  Clock::time_point renaming_since_;

  uint64_t revision_ = 0;  // of the store, at the last look
  Signal signal_;
  std::unique_ptr<kv::KvWatch> watch_;  // of the state, once it had to wait
};

}  // namespace cairnfs::control
