// The outcome of a try: all ranks are there and one of them renames, or some do not come.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/rank_visit.h"

namespace cairnfs::control {
namespace {

constexpr size_t kNamedRunsMax = 20;

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
  for (size_t i = 0; i < std::min(runs.size(), kNamedRunsMax); ++i) text += (i == 0 ? "" : ", ") + runs[i];
  return runs.size() > kNamedRunsMax ? text + ", ..." : text;
}

// Which ranks have no record. `present` are those that have one, in the order of their keys, which begin with `prefix`.
std::string DescribeMissing(const GateCall& call, const std::string& prefix, const std::vector<kv::KvEntry>& present) {
  std::vector<unsigned> numbers;
  for (const kv::KvEntry& entry : present) {
    if (const auto number = NumberOfRank(std::string_view(entry.key).substr(prefix.size()))) numbers.push_back(*number);
  }
  const size_t missing = call.ranks - present.size();
  const std::string who = numbers.size() == present.size()
                              ? MissingRanks(numbers, call.ranks)
                              : fmt::format("{} rank{} without a number", missing, missing == 1 ? "" : "s");
  return fmt::format("{} did not come within {} ({} of {} ranks {} missing)", who, DurationText(call.timeout), missing,
                     call.ranks, missing == 1 ? "is" : "are");
}

}  // namespace

std::string RankVisit::NameForMessages() const {
  return call_.rank ? fmt::format("rank {}", *call_.rank) : fmt::format("rank \"{}\"", call_.id);
}

Status RankVisit::TakePart() {
  CAIRNFS_ASSIGN_OR_RETURN(const Seen seen, Look());
  if (!seen.state || seen.state->try_id != try_id_) {
    // Ranks that came later took all of this try for dead. A rename of it may have run all the same.
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, caller_.has_final_name());
    outcome_ = is_renamed
                   ? Status()
                   : MakeError(ErrorCode::kFailed,
                               fmt::format("not committed: {} was taken for dead while it waited", NameForMessages()));
    return {};
  }
  const GatePhase phase = seen.state->phase;
  if (phase == GatePhase::kDone) outcome_ = Status();
  if (phase == GatePhase::kFailed) outcome_ = MakeError(ErrorCode::kFailed, seen.state->message);
  if (outcome_) return {};
  if (seen.own && seen.own->call_id != call_id_) {
    return MakeError(ErrorCode::kAlreadyExists,
                     fmt::format("another call as {}, on host {}, took the place of this one: give each rank a number "
                                 "of its own (--rank, or RANK in its environment)",
                                 NameForMessages(), seen.own->host));
  }
  return phase == GatePhase::kGathering ? Gather(seen) : AwaitRename(seen);
}

// Each rank counts once it has come, and the last one sees all. A rank whose time is up counts again: the last one may
// hang before it has counted.
Status RankVisit::Gather(const Seen& seen) {
  if (!seen.own) {
    outcome_ = MakeError(ErrorCode::kStale, fmt::format("host {} lost its session with the cluster while {} waited",
                                                        gate_.host, NameForMessages()));
    return {};
  }
  const bool is_time_up = Clock::Now() >= deadline_;
  if (has_counted_ && !is_time_up) return {};
  const std::string ranks = GateRanksPrefix(call_.directory, try_id_);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange present, gate_.store.Range({}, ranks, kv::PrefixEnd(ranks), 0));
  const size_t count = present.entries.size();
  const bool are_enough = count >= call_.ranks || (is_time_up && call_.at_least != 0 && count >= call_.at_least);
  std::string missing;
  if (are_enough && !call_.required.empty()) {
    const Status there = caller_.check_required();
    if (!there.ok() && there.error().code != ErrorCode::kFailed) return there.error();
    if (!there.ok()) missing = there.error().message;
  }
  if (are_enough && missing.empty()) return BecomeRenamer(seen);
  has_counted_ = true;
  if (!is_time_up && !are_enough) return {};
  // A rename of the try before, whose renamer was taken for dead, may have run after this one began.
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, caller_.has_final_name());
  GateState state = *seen.state;
  state.phase = is_renamed ? GatePhase::kDone : GatePhase::kFailed;
  if (!is_renamed && !missing.empty()) {
    state.message = fmt::format("not committed: {} of {} ranks have come, and what is required is not there: {}", count,
                                call_.ranks, missing);
  } else if (!is_renamed) {
    state.message = "not committed: " + DescribeMissing(call_, ranks, present.entries);
    if (call_.at_least != 0) state.message += fmt::format("; at least {} must come", call_.at_least);
  }
  CAIRNFS_RETURN_IF_ERROR(Record(state, seen.state_revision));
  return LookAgain();  // to be read as by all others
}

// All ranks have come; this one was counted among them.
Status RankVisit::AwaitRename(const Seen& seen) {
  const GateState& state = *seen.state;
  if (state.renamer == name_ && seen.own) return Rename(state, seen.state_revision);
  const std::string renamer_key = GateRanksPrefix(call_.directory, try_id_) + state.renamer;
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<kv::KvEntry> renamer, gate_.store.Get({}, renamer_key));
  if (!renamer) return BecomeRenamer(seen);
  CAIRNFS_ASSIGN_OR_RETURN(const GateRank record, DecodeGateRank(renamer->value));
  AwaitRenamer(seen, record.host);
  return {};
}

// Waits for a rank of that host to rename. Gives up after a time that is longer than any rename takes.
void RankVisit::AwaitRenamer(const Seen& seen, const std::string& host) {
  if (renaming_ != seen.state_revision) renaming_since_ = Clock::Now();
  renaming_ = seen.state_revision;
  if (Clock::Now() - renaming_since_ < gate_.rename_wait_max) return;
  outcome_ =
      MakeError(ErrorCode::kFailed,
                fmt::format("it is not known whether the directory is committed: a rank on host {} was to rename "
                            "it, and did not say within {} how that went",
                            host, DurationText(gate_.rename_wait_max)));
}

// From here on nobody comes to this try. A rank whose record went with its session since it was counted has one again.
Status RankVisit::BecomeRenamer(const Seen& seen) {
  GateState state = *seen.state;
  state.phase = GatePhase::kRenaming;
  state.renamer = name_;
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(OwnKey(), seen.own_revision);
  transaction.Put(state_key_, state.Encode());
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, CommitWithRecord(std::move(transaction), try_id_));
  return Rename(std::move(state), revision);
}

Status RankVisit::Rename(GateState state, uint64_t state_revision) {
  const Status renamed = caller_.rename();
  state.phase = GatePhase::kDone;
  if (!renamed.ok()) {
    const ErrorCode code = renamed.error().code;
    if (code == ErrorCode::kInterrupted) return renamed;  // another's to do
    // It may have run: asked again, the caller finds the name first.
    if (code == ErrorCode::kUnavailable || code == ErrorCode::kStale) return renamed;
    state.phase = GatePhase::kFailed;
    state.message =
        fmt::format("not committed: {} on host {}: {}", NameForMessages(), gate_.host, renamed.error().message);
  }
  const Status recorded = Record(state, state_revision);
  if (recorded.ok()) return LookAgain();  // to be read as by all others
  return recorded.error().WithContext(renamed.ok() ? "the directory is renamed, but the other ranks cannot be told"
                                                   : state.message);
}

Status RankVisit::Record(const GateState& state, uint64_t state_revision) {
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, state_revision).Put(state_key_, state.Encode());
  auto recorded = Commit(std::move(transaction));
  if (!recorded.ok()) return recorded.error();
  return {};
}

}  // namespace cairnfs::control
