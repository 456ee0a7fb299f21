// How a rank comes to its gate, waits and leaves.
#include "control/rank_visit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/coding.h"
#include "base/log.h"
#include "base/random_bytes.h"

namespace cairnfs::control {
namespace {

// A watch tells every change of the state. It does not tell that the record of a rank is gone, so a call looks again
// this often.
constexpr auto kLookAgainInterval = std::chrono::seconds(5);
constexpr auto kTryAgainInterval = std::chrono::milliseconds(200);
constexpr auto kLeaveAgainInterval = std::chrono::seconds(1);
constexpr size_t kSweptKeysMax = 256;

// Never 0.
uint64_t RandomId() { return Decoder(RandomBytes(8)).U64() | 1; }

// "8 ranks, at least 7, requiring 'shard-*'".
std::string NeedsText(unsigned ranks, unsigned at_least, const std::vector<std::string>& required) {
  std::string text = fmt::format("{} ranks", ranks);
  if (at_least != 0) text += fmt::format(", at least {}", at_least);
  for (size_t i = 0; i < required.size(); ++i) text += (i == 0 ? ", requiring '" : ", '") + required[i] + "'";
  return text;
}

// Takes down gates at which no rank has a record, of this commit and of others: among the lowest inode numbers.
void Sweep(kv::KvStore& store) {
  const auto gates = store.Range({}, kGatesPrefix, kv::PrefixEnd(kGatesPrefix), kSweptKeysMax);
  if (!gates.ok()) return;
  for (const kv::KvEntry& entry : gates->entries) {
    const auto directory = DirectoryOfStateKey(entry.key);
    const auto state = directory ? DecodeGateState(entry.value) : Result<GateState>(GateState());
    if (!directory || !state.ok()) continue;
    const std::string ranks = GateRanksPrefix(*directory, state->try_id);
    kv::Transaction transaction;
    transaction.IfRevision(entry.key, entry.revision).IfRangeEmpty(ranks, kv::PrefixEnd(ranks)).Delete(entry.key);
    static_cast<void>(store.Commit({}, transaction).ok());
  }
}

}  // namespace

void RankVisit::Signal::Raise() {
  MutexLock lock(mutex_);
  is_raised_ = true;
  changed_.NotifyAll();
}

void RankVisit::Signal::Await(const Context& context) {
  MutexLock lock(mutex_);
  context.Wait(mutex_, changed_, [this] {
    mutex_.AssertHeld();
    return is_raised_;
  });
  is_raised_ = false;
}

RankVisit::RankVisit(const RankGate::Options& gate, const GateCall& call, const RankGate::Caller& caller)
    : gate_(gate),
      call_(call),
      caller_(caller),
      call_id_(RandomId()),
      name_(GateRankName(call.rank, call.id)),
      state_key_(GateStateKey(call.directory)),
      deadline_(Clock::Now() + call.timeout) {}

Status RankVisit::Run() {
  Status result = Meet();
  if (try_id_ != 0) Leave(result);
  return result;
}

Status RankVisit::Meet() {
  for (;;) {
    const Status step = try_id_ == 0 ? Come() : TakePart();
    if (outcome_) return *outcome_;
    if (caller_.wanted.Expired()) return MakeError(ErrorCode::kInterrupted, "the commit was interrupted");
    if (step.ok()) {
      AwaitChange();
    } else if (MayTryAgain(step.error().code)) {
      static_cast<void>(caller_.wanted.Sleep(kTryAgainInterval));
    } else if (step.error().code != ErrorCode::kConflict) {
      return step;
    }
  }
}

// The store comes back, and a host whose session is lost takes a new one. A rank that has come, or waits for a rename,
// does not give up meanwhile: the others may count it, or it hears of that rename.
bool RankVisit::MayTryAgain(ErrorCode code) const {
  if (code != ErrorCode::kUnavailable && code != ErrorCode::kStale) return false;
  return try_id_ != 0 || late_for_ != 0 || Clock::Now() < deadline_;
}

void RankVisit::AwaitChange() {
  if (watch_ == nullptr) {
    kv::WatchCallbacks callbacks{[this](const std::vector<kv::KvEvent>&, uint64_t) { signal_.Raise(); },
                                 [this](uint64_t) { signal_.Raise(); }};
    auto watch = gate_.watched.Watch({}, state_key_, state_key_ + '\0', revision_, std::move(callbacks));
    if (watch.ok()) watch_ = *std::move(watch);  // it goes on without one, only more slowly
  }
  const auto now = Clock::Now();
  const auto until = now + kLookAgainInterval;
  signal_.Await(caller_.wanted.WithDeadline(deadline_ > now ? std::min(until, deadline_) : until));
}

Result<RankVisit::Seen> RankVisit::Look() {
  std::vector<kv::KvSpan> spans = {{state_key_, {}, 0}};
  if (try_id_ != 0) spans.push_back({OwnKey(), {}, 0});
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, gate_.store.Read({}, spans));
  revision_ = snapshot.revision;
  Seen seen;
  for (const kv::KvEntry& entry : snapshot.ranges[0].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.state, DecodeGateState(entry.value));
    seen.state_revision = entry.revision;
  }
  if (try_id_ == 0) return seen;
  for (const kv::KvEntry& entry : snapshot.ranges[1].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(seen.own, DecodeGateRank(entry.value));
    seen.own_revision = entry.revision;
  }
  return seen;
}

// After an answer that was lost it asks again until it knows whether the transaction ran: none of this call's may run
// once the call is over.
Result<uint64_t> RankVisit::Commit(kv::Transaction transaction) {
  transaction.operation_id = fmt::format("gate/{:x}/{}", call_id_, ++commits_);
  for (;;) {
    auto committed = gate_.store.Commit({}, transaction);
    // When the session is gone it did not run, and never can.
    const bool is_known =
        committed.ok() || committed.error().code == ErrorCode::kStale || !kv::MayHaveRun(committed.error().code);
    if (is_known || !caller_.serving.Sleep(kTryAgainInterval)) return committed;
  }
}

Result<uint64_t> RankVisit::CommitWithRecord(kv::Transaction transaction, uint64_t try_id) {
  CAIRNFS_ASSIGN_OR_RETURN(const kv::LeaseId lease, gate_.lease(caller_.wanted));
  transaction.writes.push_back(
      {GateRanksPrefix(call_.directory, try_id) + name_, GateRank{gate_.host, call_id_}.Encode(), lease});
  auto committed = Commit(std::move(transaction));
  if (committed.ok() || committed.error().code != ErrorCode::kNotFound) return committed;
  return MakeError(ErrorCode::kStale, "this host's session has just ended: " + committed.error().message);
}

Status RankVisit::Come() {
  CAIRNFS_ASSIGN_OR_RETURN(const Seen seen, Look());
  if (seen.state && seen.state->IsOpen()) {
    const GateState& state = *seen.state;
    const bool agrees = state.ranks == call_.ranks && state.at_least == call_.at_least &&
                        state.required == call_.required && state.final_parent == call_.final_parent &&
                        state.final_name == call_.final_name;
    if (agrees && state.phase == GatePhase::kGathering) {
      return Arrive(kv::Transaction().IfRevision(state_key_, seen.state_revision), state.try_id);
    }
    const std::string ranks = GateRanksPrefix(call_.directory, state.try_id);
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange waiting, gate_.store.Range({}, ranks, kv::PrefixEnd(ranks), 1));
    if (!waiting.entries.empty()) {
      if (!agrees) return Disagree(seen);
      // All were counted before this one came. It has no say in the rename: it may be of the next job, which writes
      // into the directory anew. So it leaves no record, and waits.
      late_for_ = state.try_id;
      CAIRNFS_ASSIGN_OR_RETURN(const GateRank one, DecodeGateRank(waiting.entries[0].value));
      AwaitRenamer(seen, one.host);
      return {};
    }
  }
  const bool waited_for_it = seen.state && seen.state->phase == GatePhase::kDone && seen.state->try_id == late_for_;
  if (!waited_for_it) {
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_renamed, caller_.has_final_name());
    if (!is_renamed) return Begin(seen);
  }
  outcome_ = Status();
  return {};
}

// Begins a try. A try before it is over, or nobody is left in it.
Status RankVisit::Begin(const Seen& seen) {
  GateState state;
  state.try_id = RandomId();
  state.ranks = call_.ranks;
  state.at_least = call_.at_least;
  state.required = call_.required;
  state.final_parent = call_.final_parent;
  state.final_name = call_.final_name;
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).Put(state_key_, state.Encode());
  if (seen.state && seen.state->IsOpen()) {
    const std::string ranks = GateRanksPrefix(call_.directory, seen.state->try_id);
    transaction.IfRangeEmpty(ranks, kv::PrefixEnd(ranks));
  }
  return Arrive(std::move(transaction), state.try_id);
}

// An earlier call as this rank, of a process that was killed perhaps, counts no more.
Status RankVisit::Arrive(kv::Transaction transaction, uint64_t try_id) {
  auto came = CommitWithRecord(std::move(transaction), try_id);
  if (!came.ok()) return came.error();
  try_id_ = try_id;
  // The other ranks may have waited for the same rename as this one: they have as long to come.
  deadline_ = Clock::Now() + call_.timeout;
  return LookAgain();
}

// This rank or those that wait are wrong. None may wait for ranks that never agree with it, so all are told.
Status RankVisit::Disagree(const Seen& seen) {
  GateState state = *seen.state;
  Error why =
      MakeError(ErrorCode::kInvalidArgument,
                fmt::format("the ranks do not agree: {} commits to '{}' with {}, others to {}'{}' with {}",
                            NameForMessages(), call_.final_name, NeedsText(call_.ranks, call_.at_least, call_.required),
                            state.final_parent == call_.final_parent ? "" : "another directory's ", state.final_name,
                            NeedsText(state.ranks, state.at_least, state.required)));
  if (state.phase != GatePhase::kGathering) return why;
  state.phase = GatePhase::kFailed;
  state.message = "not committed: " + why.message;
  CAIRNFS_RETURN_IF_ERROR(Record(state, seen.state_revision));
  return why;
}

// Blocks until nothing of this call counts any more. `result` becomes ok when the others have made the commit.
void RankVisit::Leave(Status& result) {
  for (bool is_first = true;; is_first = false) {
    const Status left = TryToLeave(result);
    if (left.ok() || left.error().code == ErrorCode::kStale) return;  // its record goes with the session
    if (left.error().code == ErrorCode::kConflict) continue;
    if (is_first) {
      spdlog::warn("cannot take {} from the gate of directory {} yet: {}", NameForMessages(), call_.directory.value,
                   left.error().message);
    }
    if (!caller_.serving.Sleep(kLeaveAgainInterval)) return;
  }
}

Status RankVisit::TryToLeave(Status& result) {
  CAIRNFS_ASSIGN_OR_RETURN(const Seen seen, Look());
  GateState state = seen.state.value_or(GateState());
  const bool is_own_try = state.try_id == try_id_;
  if (is_own_try && state.phase == GatePhase::kDone) result = {};
  if (!seen.own || seen.own->call_id != call_id_) return {};  // it went with the session, or is a later call's
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(OwnKey(), seen.own_revision).Delete(OwnKey());
  if (is_own_try && state.phase == GatePhase::kGathering && state.at_least != 0) {
    // Fewer do. A rank that counted this one counts again.
    transaction.Put(state_key_, state.Encode());
  } else if (is_own_try && state.phase == GatePhase::kGathering) {
    // A rank that counted this one must not go on. And who is left of a killed job does not mix with the next one.
    state.phase = GatePhase::kFailed;
    state.message =
        fmt::format("not committed: {} on host {} gave up: {}", NameForMessages(), gate_.host, result.error().message);
    transaction.Put(state_key_, state.Encode());
  } else if (is_own_try && state.phase == GatePhase::kRenaming && state.renamer == name_) {
    state.renamer.clear();  // the others are woken
    transaction.Put(state_key_, state.Encode());
  }
  if (auto left = Commit(std::move(transaction)); !left.ok()) return left.error();
  if (is_own_try && state.phase == GatePhase::kDone && state.renamer == name_) Sweep(gate_.store);
  return {};
}

}  // namespace cairnfs::control
