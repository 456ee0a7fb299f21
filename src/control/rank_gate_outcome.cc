// What comes of a gate: all ranks are there and one of them renames, or some do not come; and who takes it down.
#include <fmt/format.h>

#include "base/log.h"
#include "control/rank_gate_visit.h"

namespace cairnfs::control {
namespace {

constexpr int64_t kForgottenAfterSeconds = 24 * 3600;
constexpr size_t kSweptKeysMax = 256;
constexpr size_t kNamedRanksMax = 20;

std::string DurationText(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? fmt::format("{} s", time.count() / 1000) : fmt::format("{} ms", time.count());
}

// "ranks 2, 5-7": those of [0, ranks) that are not among `present`, which is sorted.
std::string MissingRanks(const std::vector<unsigned>& present, unsigned ranks) {
  std::vector<std::string> runs;
  unsigned next = 0;
  size_t count = 0;
  auto add_until = [&](unsigned end) {
    if (next >= end) return;
    count += end - next;
    runs.push_back(end - next == 1 ? fmt::format("{}", next) : fmt::format("{}-{}", next, end - 1));
  };
  for (unsigned rank : present) {
    add_until(rank);
    next = rank + 1;
  }
  add_until(ranks);
  std::string text = count == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(runs.size(), kNamedRanksMax); ++i) text += (i == 0 ? "" : ", ") + runs[i];
  return runs.size() > kNamedRanksMax ? text + ", ..." : text;
}

}  // namespace

// Looks at the gate and does what is this rank's to do. An error with is_over unset is a conflict: look again.
Status RankGate::Visit::Evaluate(const Rename& rename, bool& is_over) {
  auto over = [&](Status status) {
    is_over = true;
    return status;
  };
  auto looked = Look(elected_key_);
  if (!looked.ok()) return over(looked.error());
  const Seen& seen = *looked;
  if (!seen.state) return over(MakeError(ErrorCode::kStale, "the gate was taken down while this rank waited"));
  const GateState& state = *seen.state;
  if (state.generation != generation_) return over(MakeError(ErrorCode::kFailed, state.message));
  switch (state.phase) {
    case GatePhase::kDone: Leave(seen.state_revision); return over({});
    case GatePhase::kFailed: return over(MakeError(ErrorCode::kFailed, state.message));
    case GatePhase::kGathering: return Gather(seen, rename, is_over);
    case GatePhase::kRenaming: break;
  }
  if (seen.other && !RenamerIsGone(*seen.other)) return {};
  Status elected = Elect(seen, std::nullopt);
  if (elected.ok()) return DoRename(rename, is_over);
  is_over = elected.error().code != ErrorCode::kConflict;
  return elected;
}

Status RankGate::Visit::Gather(const Seen& seen, const Rename& rename, bool& is_over) {
  std::vector<unsigned> present;
  size_t present_count = 0;
  bool is_there = false;
  auto ranks = store_.Range(ranks_begin_, ranks_end_, 0);
  is_over = !ranks.ok();
  if (!ranks.ok()) return ranks.error();
  for (const kv::KvEntry& entry : ranks->entries) {
    auto visitor = DecodeGateVisitor(entry.value);
    if (!visitor.ok() || !visitor->waits || visitor->generation != generation_) continue;
    ++present_count;
    is_there |= entry.key == own_key_;
    if (auto rank = RankOfKey(entry.key)) present.push_back(*rank);
  }
  if (!is_there) {
    is_over = true;
    return MakeError(ErrorCode::kStale, fmt::format("host {} lost its session with the cluster while {} waited",
                                                    gate_.options_.host, RankName(call_)));
  }
  Status status;
  if (present_count >= call_.ranks) {
    status = Elect(seen, ranks->revision);
    if (status.ok()) return DoRename(rename, is_over);
  } else if (Clock::now() >= deadline_) {
    status = GiveUp(seen, present, present_count, ranks->revision);
    if (status.ok()) return Conflict();  // to be read as by all others
  }
  is_over = !status.ok() && status.error().code != ErrorCode::kConflict;
  return status;
}

Status RankGate::Visit::GiveUp(const Seen& seen, const std::vector<unsigned>& present, size_t present_count,
                               uint64_t ranks_revision) {
  GateState state = *seen.state;
  state.phase = GatePhase::kFailed;
  state.changed = WallClock();
  const size_t missing = call_.ranks - present_count;
  const std::string who = present.size() == present_count
                              ? MissingRanks(present, call_.ranks)
                              : fmt::format("{} rank{} without a number", missing, missing == 1 ? "" : "s");
  state.message = fmt::format("not committed: {} did not come within {} ({} of {} ranks {} missing)", who,
                              DurationText(call_.timeout), missing, call_.ranks, missing == 1 ? "is" : "are");
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRangeUnchanged(ranks_begin_, ranks_end_, ranks_revision);
  transaction.Put(state_key_, state.Encode());
  return Commit(transaction);
}

// This rank renames from here on. `ranks_revision`: all were there then; nullopt: one renamed before, and is gone.
Status RankGate::Visit::Elect(const Seen& seen, std::optional<uint64_t> ranks_revision) {
  GateState state = *seen.state;
  state.phase = GatePhase::kRenaming;
  state.changed = WallClock();
  CAIRNFS_ASSIGN_OR_RETURN(kv::LeaseId lease, gate_.options_.lease());
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(elected_key_, seen.other_revision);
  if (ranks_revision) transaction.IfRangeUnchanged(ranks_begin_, ranks_end_, *ranks_revision);
  transaction.Put(state_key_, state.Encode());
  transaction.writes.push_back({elected_key_, OwnVisitor(true).Encode(), lease});
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t revision, store_.Commit(transaction));
  renaming_ = {std::move(state), revision};
  return {};
}

Status RankGate::Visit::DoRename(const Rename& rename, bool& is_over) {
  Status renamed = rename();
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, renaming_->second).Delete(elected_key_);
  const bool is_gone = !renamed.ok() && renamed.error().code == ErrorCode::kInterrupted;
  if (!is_gone) {
    GateState& state = renaming_->first;
    state.phase = renamed.ok() ? GatePhase::kDone : GatePhase::kFailed;
    state.changed = WallClock();
    if (!renamed.ok()) {
      state.message = fmt::format("not committed: {} on host {}: {}", RankName(call_), gate_.options_.host,
                                  renamed.error().message);
    }
    transaction.Put(state_key_, state.Encode());
  }
  Status recorded = Commit(transaction);
  is_over = is_gone || (!recorded.ok() && recorded.error().code != ErrorCode::kConflict);
  if (is_gone) return renamed;
  if (!is_over) return Conflict();  // the outcome stands in the gate
  return recorded.error().WithContext(renamed.ok() ? "the directory is renamed, but the other ranks cannot be told"
                                                   : renamed.error().message);
}

// A record that says so, and not its removal: whoever counts the ranks compares that none of them changed. Where the
// session ended, another call may be there as this rank by now: its record stays.
void RankGate::Visit::Withdraw() {
  auto record = OwnRecord(false);
  if (!record.ok()) return;
  kv::Transaction transaction;
  transaction.IfRevision(own_key_, own_revision_).writes.push_back(*std::move(record));
  if (auto left = store_.Commit(transaction); !left.ok() && left.error().code != ErrorCode::kConflict) {
    spdlog::warn("cannot take {} from its gate: {}", RankName(call_), left.error().message);
  }
}

// The last one takes the gate down, unless a next job uses it already. What fails here is left for a sweep.
void RankGate::Visit::Leave(uint64_t done_revision) {
  kv::Transaction transaction;
  transaction.Delete(own_key_);
  if (!store_.Commit(transaction).ok()) return;
  auto left = store_.Range(ranks_begin_, ranks_end_, 1);
  if (left.ok() && left->entries.empty()) {
    kv::Transaction last;
    last.IfRevision(state_key_, done_revision).IfRangeUnchanged(ranks_begin_, ranks_end_, left->revision);
    last.Delete(state_key_).Delete(elected_key_);
    static_cast<void>(store_.Commit(last).ok());
  }
  if (renaming_) Sweep();
}

// Gates that nobody came back to.
void RankGate::Visit::Sweep() {
  auto gates = store_.Range(kGatesPrefix, kv::PrefixEnd(kGatesPrefix), kSweptKeysMax);
  if (!gates.ok()) return;
  kv::Transaction transaction;
  std::optional<InodeId> old;
  for (const kv::KvEntry& entry : gates->entries) {
    const auto directory = DirectoryOfGateKey(entry.key);
    if (!directory || transaction.writes.size() >= store_.limits().operations_per_transaction_max) break;
    if (entry.key == GateStateKey(*directory)) {
      auto state = DecodeGateState(entry.value);
      old = state.ok() && state->changed.seconds + kForgottenAfterSeconds < WallClock().seconds ? directory
                                                                                                : std::nullopt;
    }
    if (old == directory) transaction.Delete(entry.key);
  }
  if (!transaction.writes.empty()) static_cast<void>(store_.Commit(transaction).ok());
}

}  // namespace cairnfs::control
