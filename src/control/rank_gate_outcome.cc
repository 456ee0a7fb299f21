// The outcome of a gate: all ranks are there and one of them renames, or some do not come.
#include <fmt/format.h>

#include <random>

#include "base/clock.h"
#include "control/rank_gate_visit.h"

namespace cairnfs::control {
namespace {

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

// Looks at the gate, and does this rank's part.
Status RankGate::Visit::Evaluate(const Caller& caller) {
  CAIRNFS_ASSIGN_OR_RETURN(const Seen seen, Look());
  if (!seen.state || seen.state->generation != generation_) {
    // As for a rank whose record went with its session: the others did not see that it waits yet.
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_committed, caller.has_final_name());
    if (is_committed) outcome_ = Status();
    if (!is_committed && !seen.state) {
      outcome_ = MakeError(ErrorCode::kStale, "the gate was taken down while this rank waited");
    }
    if (outcome_) return {};
  }
  const GateState& state = *seen.state;
  if (state.generation != generation_ || state.phase == GatePhase::kFailed) {
    outcome_ = MakeError(ErrorCode::kFailed, state.message.empty()
                                                 ? "not committed: another commit of the directory took its place"
                                                 : state.message);
    may_have_come_ = false;  // the record stays, and tells the next call that this rank took part
    return {};
  }
  switch (state.phase) {
    case GatePhase::kGathering: return Gather(seen, caller);
    case GatePhase::kRenaming: return AwaitRename(seen, caller);
    default: break;
  }
  outcome_ = Status();
  may_have_come_ = !Leave(seen.state, seen.state_revision).ok();
  return {};
}

// Reads the records of the ranks, if the state is still as it was seen. Otherwise they say nothing of that state.
Result<kv::KvRange> RankGate::Visit::ReadRanks(const Seen& seen) {
  const std::vector<kv::KvSpan> spans = {{state_key_, {}, 0}, {ranks_begin_, ranks_end_, 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot now, store_.Read(spans));
  const auto& states = now.ranges[0].entries;
  if (states.empty() || states[0].revision != seen.state_revision) return Conflict();
  kv::KvRange ranks = std::move(now.ranges[1]);
  ranks.revision = now.revision;
  return ranks;
}

Status RankGate::Visit::Gather(const Seen& seen, const Caller& caller) {
  if (!seen.own || !seen.own->waits || seen.own->generation != generation_) {
    outcome_ = MakeError(ErrorCode::kStale, fmt::format("host {} lost its session with the cluster while {} waited",
                                                        gate_.options_.host, RankName(call_)));
    return {};
  }
  const bool has_timed_out = Clock::Now() >= deadline_;
  if (!has_timed_out && !IsToCount()) return {};
  std::vector<unsigned> present;
  size_t present_count = 0;
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange ranks, ReadRanks(seen));
  for (const kv::KvEntry& entry : ranks.entries) {
    auto visitor = DecodeGateVisitor(entry.value);
    if (!visitor.ok() || !visitor->waits || visitor->generation != generation_) continue;
    ++present_count;
    if (auto rank = RankOfKey(entry.key)) present.push_back(*rank);
  }
  if (present_count >= call_.ranks) return BeElected(seen, ranks.revision, caller);
  has_counted_ = true;
  if (!has_timed_out) return {};
  // A rename of the generation before, which nobody was left to tell of, may have run after this one began.
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, caller.has_final_name());
  CAIRNFS_RETURN_IF_ERROR(is_renamed ? RecordDone(*seen.state, seen.state_revision)
                                     : GiveUp(seen, present, present_count, ranks.revision));
  return Conflict();  // to be read as by all others
}

// Each rank counts once it has come, and the last one sees all. Later counts are needed only when the last rank hangs
// before it has counted. Since a count reads the records of all, on average one of all waiting ranks counts at each
// round of looks.
bool RankGate::Visit::IsToCount() const {
  static thread_local std::minstd_rand random(std::random_device{}());
  return !has_counted_ || std::uniform_int_distribution<unsigned>(1, call_.ranks)(random) == 1;
}

Status RankGate::Visit::AwaitRename(const Seen& seen, const Caller& caller) {
  // The answer to the election, or to this rank's record of the outcome, was lost. The directory is renamed once all
  // the same.
  if (IsOwn(seen.elected)) return DoRename(*seen.state, seen.state_revision, caller);
  // This rank was among those that were counted: one that comes later waits in ArriveAtRename.
  if (!seen.elected || IsGone(*seen.elected)) return BeElected(seen, std::nullopt, caller);
  AwaitRenamer(seen, seen.elected->host);
  return {};
}

// Waits for a rank of that host to rename. Gives up after a time that is longer than any rename takes.
void RankGate::Visit::AwaitRenamer(const Seen& seen, const std::string& host) {
  if (election_ != seen.state_revision) election_seen_ = Clock::Now();
  election_ = seen.state_revision;
  if (Clock::Now() - election_seen_ < gate_.options_.rename_wait_max) return;
  outcome_ =
      MakeError(ErrorCode::kFailed,
                fmt::format("it is not known whether the directory is committed: a rank on host {} was to rename "
                            "it, and did not say within {} how that went",
                            host, DurationText(gate_.options_.rename_wait_max)));
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

// This rank is to rename from here on. At `ranks_revision` all were there; nullopt: a rank was to rename before, and is
// gone.
Status RankGate::Visit::BeElected(const Seen& seen, std::optional<uint64_t> ranks_revision, const Caller& caller) {
  GateState state = *seen.state;
  state.phase = GatePhase::kRenaming;
  state.changed = WallClock();
  CAIRNFS_ASSIGN_OR_RETURN(kv::LeaseId lease, gate_.options_.lease());
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(elected_key_, seen.elected_revision);
  if (ranks_revision) transaction.IfRangeUnchanged(ranks_begin_, ranks_end_, *ranks_revision);
  transaction.Put(state_key_, state.Encode());
  transaction.writes.push_back({elected_key_, OwnVisitor(true).Encode(), lease});
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t revision, store_.Commit(transaction));
  return DoRename(std::move(state), revision, caller);
}

Status RankGate::Visit::DoRename(GateState state, uint64_t state_revision, const Caller& caller) {
  Status renamed = caller.rename();
  if (!renamed.ok()) {
    const ErrorCode code = renamed.error().code;
    if (code == ErrorCode::kInterrupted) return renamed;  // another's to do
    // It may have run: asked again, the caller finds the name first.
    if (code == ErrorCode::kUnavailable || code == ErrorCode::kStale) return renamed;
    state.phase = GatePhase::kFailed;
    state.message =
        fmt::format("not committed: {} on host {}: {}", RankName(call_), gate_.options_.host, renamed.error().message);
  }
  has_renamed_ = true;
  Status recorded =
      renamed.ok() ? RecordDone(std::move(state), state_revision) : Record(std::move(state), state_revision);
  if (recorded.ok()) return Conflict();  // the outcome stands in the gate
  const ErrorCode code = recorded.error().code;
  if (code == ErrorCode::kConflict || code == ErrorCode::kUnavailable || code == ErrorCode::kStale) return recorded;
  return recorded.error().WithContext(renamed.ok() ? "the directory is renamed, but the other ranks cannot be told"
                                                   : renamed.error().message);
}

Status RankGate::Visit::RecordDone(GateState state, uint64_t state_revision) {
  state.phase = GatePhase::kDone;
  return Record(std::move(state), state_revision);
}

// Records how the rename went, and ends the election.
Status RankGate::Visit::Record(GateState state, uint64_t state_revision) {
  state.changed = WallClock();
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, state_revision).Put(state_key_, state.Encode()).Delete(elected_key_);
  return Commit(transaction);
}

}  // namespace cairnfs::control
