// A rank comes to its gate: begins it, joins it, waits for a rename that is under way, or takes over a gate at which
// nobody waits.
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "base/clock.h"
#include "control/rank_gate_visit.h"

namespace cairnfs::control {

Result<RankGate::Visit::Arrival> RankGate::Visit::Arrive(const Caller& caller) {
  CAIRNFS_RETURN_IF_ERROR(SettleArrival());
  CAIRNFS_ASSIGN_OR_RETURN(Seen seen, Look());
  if (IsOwn(seen.own)) {  // the answer was lost
    may_have_come_ = true;
    generation_ = seen.own->generation;
    own_revision_ = seen.own_revision;
    return Arrival::kCame;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_committed, IsCommitted(seen, caller));
  if (is_committed) {
    own_revision_ = seen.own_revision;  // of an earlier call, which hears the same
    if (seen.state) may_have_come_ = !Leave(*seen.state, seen.state_revision).ok();
    return Arrival::kCommitted;
  }
  if (seen.state && seen.state->phase == GatePhase::kRenaming && Agrees(*seen.state)) {
    return ArriveAtRename(seen, caller);
  }
  CAIRNFS_RETURN_IF_ERROR(Join(seen));
  return Arrival::kCame;
}

// Whether the gate, which is done or gone, was this rank's: the directory's name tells. A rank that waited for that
// very rename need not ask.
Result<bool> RankGate::Visit::IsCommitted(const Seen& seen, const Caller& caller) {
  if (seen.state && seen.state->phase != GatePhase::kDone) return false;
  if (seen.state && seen.state->generation == late_for_ && Agrees(*seen.state)) return true;
  return caller.has_final_name();
}

// Joins the ranks that gather, or will from now on.
Status RankGate::Visit::Join(const Seen& seen) {
  if (!seen.state) return Begin(seen, 1, "");
  const GateState& state = *seen.state;
  if (state.phase == GatePhase::kFailed) return ArriveAtFailed(seen);
  const bool agrees = Agrees(state);
  if (agrees && state.phase == GatePhase::kDone) {
    return Begin(
        seen, state.generation + 1,
        fmt::format("the directory was committed as '{}', and has been renamed again since", state.final_name));
  }
  if (agrees) return ArriveAt(seen);
  if (state.phase != GatePhase::kRenaming || !seen.elected) return TakeOver(seen);
  return Disagreement(state);
}

// All ranks were counted before this one came. It has no say in the rename, and leaves no record: so all records of
// this generation are of ranks that were counted. Once none of these is left to rename, this rank may be of the next
// job, which writes into the directory anew; then all have to come again. But the rename of a rank that has gone may
// have run.
Result<RankGate::Visit::Arrival> RankGate::Visit::ArriveAtRename(const Seen& seen, const Caller& caller) {
  late_for_ = seen.state->generation;
  late_revision_ = seen.revision;
  if (seen.elected && !IsGone(*seen.elected)) {
    AwaitRenamer(seen, seen.elected->host);
    return Arrival::kLate;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange ranks, ReadRanks(seen));
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<GateVisitor> counted, FindWaiting(seen, ranks));
  if (counted) {
    AwaitRenamer(seen, counted->host);
    return Arrival::kLate;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, caller.has_final_name());
  if (is_renamed) {
    CAIRNFS_RETURN_IF_ERROR(RecordDone(*seen.state, seen.state_revision));
    return Conflict();  // to be read as by all others
  }
  CAIRNFS_RETURN_IF_ERROR(Begin(seen, seen.state->generation + 1,
                                "not committed: all ranks had come, but none is left of those that were to rename it",
                                ranks.revision));
  return Arrival::kCame;
}

// A rank that is late is told once that the others have gone. One that was there, or was told of any failure, tries
// again. What this daemon told a rank outlives that rank's record, which goes with its session.
Status RankGate::Visit::ArriveAtFailed(const Seen& seen) {
  const GateState& state = *seen.state;
  const auto last = gate_.LastEnded(own_key_);
  const bool took_part = seen.own || (last && !last->is_committed);
  const bool is_fresh = WallClock().seconds - state.changed.seconds <= call_.timeout.count() / 1000;
  if (took_part || !is_fresh) return Begin(seen, state.generation + 1, state.message);
  generation_ = state.generation;
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(false));
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(own_key_, seen.own_revision);
  transaction.writes.push_back(std::move(record));
  CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
  return MakeError(ErrorCode::kFailed, fmt::format("{}: {} came too late", state.message, RankName(call_)));
}

// Ranks of a job that died, or is done, leave a gate behind at which nobody waits. Where a rank does wait, it or this
// one is wrong. No rank may wait for ranks that never agree with it, so all of them are told.
Status RankGate::Visit::TakeOver(const Seen& seen) {
  // Another rank may have taken the gate over meanwhile: then those that wait are of its job, not of the dead one.
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange ranks, ReadRanks(seen));
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<GateVisitor> waiting, FindWaiting(seen, ranks));
  if (waiting) return FailOfDisagreement(seen);
  return Begin(seen, seen.state->generation + 1, seen.state->message, ranks.revision);
}

Status RankGate::Visit::FailOfDisagreement(const Seen& seen) {
  Error why = Disagreement(*seen.state);
  if (seen.state->phase != GatePhase::kGathering) return why;
  GateState state = *seen.state;
  state.phase = GatePhase::kFailed;
  state.changed = WallClock();
  state.message = "not committed: " + why.message;
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).Put(state_key_, state.Encode());
  CAIRNFS_RETURN_IF_ERROR(Commit(transaction));
  return why;
}

// Finds a rank that waits, or may. One of an earlier generation waits no more.
Result<std::optional<GateVisitor>> RankGate::Visit::FindWaiting(const Seen& seen, const kv::KvRange& ranks) const {
  for (const kv::KvEntry& entry : ranks.entries) {
    CAIRNFS_ASSIGN_OR_RETURN(GateVisitor visitor, DecodeGateVisitor(entry.value));
    const bool may_wait = visitor.waits && visitor.generation == seen.state->generation;
    if (may_wait && !IsGone(visitor)) return std::optional(std::move(visitor));
  }
  return std::optional<GateVisitor>();
}

bool RankGate::Visit::Agrees(const GateState& state) const {
  return state.ranks == call_.ranks && state.final_parent == call_.final_parent && state.final_name == call_.final_name;
}

Error RankGate::Visit::Disagreement(const GateState& state) const {
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("the ranks do not agree: {} commits to '{}' with {} ranks, others to {}'{}' with {}", RankName(call_),
                  call_.final_name, call_.ranks, state.final_parent == call_.final_parent ? "" : "another directory's ",
                  state.final_name, state.ranks));
}

Status RankGate::Visit::ArriveAt(const Seen& seen) {
  generation_ = seen.state->generation;
  const auto& own = seen.own;
  const bool is_waited_for = own && own->waits && own->generation == generation_;
  earlier_call_ = is_waited_for && own->incarnation == gate_.incarnation_ ? own->call : 0;
  if (is_waited_for && !IsGone(*own)) {
    return MakeError(ErrorCode::kAlreadyExists,
                     fmt::format("{} waits already, on host {}: give each rank a number of its own (--rank, or RANK in "
                                 "its environment); if that host died, try again when its lease has ended",
                                 RankName(call_), own->host));
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(true));
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(own_key_, seen.own_revision);
  transaction.writes.push_back(std::move(record));
  return CommitArrival(std::move(transaction));
}

// Waits for the end of an earlier call as this rank: its process may have been killed, and this host not have noticed
// yet.
bool RankGate::Visit::EarlierCallEnds(const std::function<bool()>& cancelled) {
  while (earlier_call_ != 0 && gate_.IsLive(earlier_call_)) {
    if (cancelled() || Clock::Now() >= patient_until_) return false;
    Clock::SleepFor(kCancelledInterval);
  }
  return earlier_call_ != 0;
}

bool RankGate::Visit::EarlierCallCommitted() {
  const auto last = gate_.LastEnded(own_key_);
  return earlier_call_ != 0 && last && last->call == earlier_call_ && last->is_committed;
}

// Begins a generation of the gate, with this rank as the first. At `ranks_revision` nobody waited.
Status RankGate::Visit::Begin(const Seen& seen, uint32_t generation, const std::string& message,
                              std::optional<uint64_t> ranks_revision) {
  generation_ = generation;
  GateState state;
  state.generation = generation;
  state.ranks = call_.ranks;
  state.changed = WallClock();
  state.final_parent = call_.final_parent;
  state.final_name = call_.final_name;
  state.message = message;
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(true));
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(own_key_, seen.own_revision);
  transaction.Put(state_key_, state.Encode());
  if (ranks_revision) transaction.IfRangeUnchanged(ranks_begin_, ranks_end_, *ranks_revision);
  transaction.Delete(elected_key_);
  transaction.writes.push_back(std::move(record));
  return CommitArrival(std::move(transaction));
}

}  // namespace cairnfs::control
