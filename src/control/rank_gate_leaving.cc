// How ranks leave a gate, and how gates are taken down. docs/formats/gate.md says who may delete what.
#include "control/rank_gate_visit.h"

namespace cairnfs::control {
namespace {

constexpr int64_t kForgottenAfterSeconds = 24 * 3600;
constexpr size_t kSweptKeysMax = 256;
constexpr size_t kRecordsAtOnceMax = 64;  // well within what a transaction holds

}  // namespace

Status RankGate::Visit::Withdraw() {
  while (may_have_come_) {
    Status withdrawn = TryToWithdraw();
    may_have_come_ = !withdrawn.ok();
    if (!withdrawn.ok() && withdrawn.error().code != ErrorCode::kConflict) return withdrawn;
  }
  return {};
}

// Writes that the rank has gone, and does not remove its record: a count of the ranks compares that none of the records
// changed. It compares the state that was seen, so that the rank that leaves last, once the gate is done, sees this
// record in its last form.
Status RankGate::Visit::TryToWithdraw() {
  CAIRNFS_RETURN_IF_ERROR(SettleArrival());
  CAIRNFS_ASSIGN_OR_RETURN(const Seen seen, Look());
  const bool is_done = seen.state && seen.state->phase == GatePhase::kDone && seen.state->generation == generation_;
  is_committed_ |= is_done && Agrees(*seen.state);
  // After the session ended another call may have come as this rank. Its record stays.
  const bool has_record = IsOwn(seen.own), is_elected = IsOwn(seen.elected);
  if (!has_record && !is_elected) return {};
  if (has_record && (!seen.state || seen.state->phase == GatePhase::kDone)) {
    own_revision_ = seen.own_revision;
    return Leave(seen.state, seen.state_revision);
  }
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision);
  if (has_record) {
    CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(false));
    transaction.IfRevision(own_key_, seen.own_revision).writes.push_back(std::move(record));
  }
  if (is_elected) transaction.IfRevision(elected_key_, seen.elected_revision).Delete(elected_key_);
  return Commit(transaction);
}

// Leaves a gate that is done. All is well once this rank's record is gone, or is another call's. A gate that then
// cannot be taken down is left to a rank that leaves later, the next that comes, or the sweep.
Status RankGate::Visit::Leave(const std::optional<GateState>& done, uint64_t state_revision) {
  if (own_revision_ != 0) {
    kv::Transaction transaction;
    transaction.IfRevision(own_key_, own_revision_).Delete(own_key_);
    Status left = Commit(transaction);
    if (!left.ok()) return left.error().code == ErrorCode::kConflict ? Status() : left;
  }
  static_cast<void>(TakeDown(call_.directory, done, state_revision).ok());
  if (has_renamed_) Sweep();
  return {};
}

// Removes a gate, with records of ranks that have gone, unless a rank waits at it or anything changes meanwhile.
Status RankGate::Visit::TakeDown(InodeId directory, const std::optional<GateState>& state, uint64_t state_revision) {
  const std::string begin = GateRanksPrefix(directory), end = kv::PrefixEnd(begin);
  const bool may_wait = state && state->phase != GatePhase::kFailed;
  for (bool is_last = false; !is_last;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange ranks, store_.Range(begin, end, kRecordsAtOnceMax));
    kv::Transaction transaction;
    transaction.IfRevision(GateStateKey(directory), state_revision).IfAbsent(GateElectedKey(directory));
    transaction.IfRangeUnchanged(begin, end, ranks.revision);
    for (const kv::KvEntry& entry : ranks.entries) {
      auto visitor = DecodeGateVisitor(entry.value);
      if (may_wait && visitor.ok() && visitor->waits && visitor->generation == state->generation) return {};
      transaction.Delete(entry.key);
    }
    is_last = !ranks.more;
    if (is_last) transaction.Delete(GateStateKey(directory));
    CAIRNFS_RETURN_IF_ERROR(Commit(transaction));
  }
  return {};
}

// Takes down gates to which nobody came back. A clock may be wrong, so it never takes down one that is in use.
void RankGate::Visit::Sweep() {
  auto gates = store_.Range(kGatesPrefix, kv::PrefixEnd(kGatesPrefix), kSweptKeysMax);
  if (!gates.ok()) return;
  for (const kv::KvEntry& entry : gates->entries) {
    const auto directory = DirectoryOfGateKey(entry.key);
    if (!directory || entry.key != GateStateKey(*directory)) continue;
    auto state = DecodeGateState(entry.value);
    if (!state.ok() || state->changed.seconds + kForgottenAfterSeconds >= WallClock().seconds) continue;
    static_cast<void>(TakeDown(*directory, *state, entry.revision).ok());
  }
}

}  // namespace cairnfs::control
