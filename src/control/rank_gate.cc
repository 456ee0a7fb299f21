#include "control/rank_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/rank_gate_records.h"

namespace cairnfs::control {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kCancelledInterval = std::chrono::milliseconds(200);
// A watch tells of every change; this is for a host that died between seeing all ranks and acting on it.
constexpr auto kLookAgainInterval = std::chrono::seconds(5);
constexpr int64_t kForgottenAfterSeconds = 24 * 3600;
constexpr size_t kSweptKeysMax = 256;
constexpr size_t kNamedRanksMax = 20;
constexpr size_t kRememberedRanksMax = 4096;

uint64_t RandomNumber() {
  std::random_device random;
  return static_cast<uint64_t>(random()) << 32 | random();
}

Timestamp WallClock() {
  auto since = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration_cast<std::chrono::seconds>(since).count(), 0};
}

Error Conflict() { return MakeError(ErrorCode::kConflict, ""); }

std::string RankName(const GateCall& call) {
  return call.rank ? fmt::format("rank {}", *call.rank) : fmt::format("rank \"{}\"", call.id);
}

std::string DurationText(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? fmt::format("{} s", time.count() / 1000) : fmt::format("{} ms", time.count());
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
  struct Seen {
    std::optional<GateState> state;
    uint64_t state_revision = 0;
    std::optional<GateVisitor> other;  // elected, or this rank's own record
    uint64_t other_revision = 0;
    uint64_t revision = 0;
  };
  Result<Seen> Look(const std::string& other_key);
  Status Commit(const kv::Transaction& transaction);
  Status CommitArrival(const kv::Transaction& transaction);
  Result<kv::KvWrite> OwnRecord(bool waits);
  GateVisitor OwnVisitor(bool waits) const;

  // All of these: kConflict when something changed since it was looked at.
  Status Arrive();
  Status ArriveAt(const Seen& seen);
  bool EarlierCallEnds(const std::function<bool()>& cancelled);
  bool EarlierCallCommitted();
  Status Begin(const Seen& seen, uint32_t generation, const std::string& message,
               std::optional<uint64_t> ranks_revision = std::nullopt);
  Status Evaluate(const Rename& rename, bool& is_over);
  Status Gather(const Seen& seen, const Rename& rename, bool& is_over);
  Status GiveUp(const Seen& seen, const std::vector<unsigned>& present, size_t present_count, uint64_t ranks_revision);
  Status Elect(const Seen& seen, std::optional<uint64_t> ranks_revision);
  Status DoRename(const Rename& rename, bool& is_over);
  bool RenamerIsGone(const GateVisitor& renamer) const;
  Status TakeOver(const Seen& seen);
  Error Disagreement(const GateState& state) const;

  Status AwaitOthers(const Rename& rename, const std::function<bool()>& cancelled);
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

Status RankGate::Visit::Arrive() {
  CAIRNFS_ASSIGN_OR_RETURN(Seen seen, Look(own_key_));
  if (!seen.state) return Begin(seen, 1, "");
  const GateState& state = *seen.state;
  if (state.phase == GatePhase::kFailed) {
    // Whoever is late learns that the others have gone, once; whoever was there, or was told of any failure, tries
    // again. A record goes with its session, what this daemon told does not.
    const auto last = gate_.LastEnded(own_key_);
    const bool took_part = seen.other || (last && !last->is_committed);
    const bool is_fresh = WallClock().seconds - state.changed.seconds <= call_.timeout.count() / 1000;
    if (took_part || !is_fresh) return Begin(seen, state.generation + 1, state.message);
    generation_ = state.generation;
    CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(false));
    kv::Transaction transaction;
    transaction.IfRevision(state_key_, seen.state_revision).writes.push_back(std::move(record));
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
    return MakeError(ErrorCode::kFailed, fmt::format("{}: {} came too late", state.message, RankName(call_)));
  }
  const bool agrees =
      state.ranks == call_.ranks && state.final_parent == call_.final_parent && state.final_name == call_.final_name;
  if (agrees) return ArriveAt(seen);
  if (state.phase == GatePhase::kGathering) return TakeOver(seen);
  return Disagreement(state);
}

// Ranks of a job that died leave a gate behind at which nobody waits. At any other this rank is wrong.
Status RankGate::Visit::TakeOver(const Seen& seen) {
  const std::vector<kv::KvSpan> spans = {{state_key_, {}, 0}, {ranks_begin_, ranks_end_, 0}};
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot now, store_.Read(spans));
  // Another rank may have taken the gate over meanwhile: then those that wait are of its job, not of the dead one.
  const auto& states = now.ranges[0].entries;
  if (states.empty() || states[0].revision != seen.state_revision) return Conflict();
  for (const kv::KvEntry& entry : now.ranges[1].entries) {
    CAIRNFS_ASSIGN_OR_RETURN(GateVisitor visitor, DecodeGateVisitor(entry.value));
    if (visitor.waits && !RenamerIsGone(visitor)) return Disagreement(*seen.state);
  }
  return Begin(seen, seen.state->generation + 1, seen.state->message, now.revision);
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
  const auto& own = seen.other;
  const bool is_waited_for = own && own->waits && own->generation == generation_;
  earlier_call_ = is_waited_for && own->incarnation == gate_.incarnation_ ? own->call : 0;
  if (seen.state->phase == GatePhase::kGathering && is_waited_for && !RenamerIsGone(*own)) {
    return MakeError(ErrorCode::kAlreadyExists,
                     fmt::format("{} waits already, on host {}: give each rank a number of its own (--rank, or RANK in "
                                 "its environment); if that host died, try again when its lease has ended",
                                 RankName(call_), own->host));
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvWrite record, OwnRecord(true));
  kv::Transaction transaction;
  transaction.IfRevision(state_key_, seen.state_revision).IfRevision(own_key_, seen.other_revision);
  transaction.writes.push_back(std::move(record));
  return CommitArrival(transaction);
}

// That of a process that was killed, where this host did not notice it yet.
bool RankGate::Visit::EarlierCallEnds(const std::function<bool()>& cancelled) {
  while (earlier_call_ != 0 && gate_.IsLive(earlier_call_)) {
    if (cancelled() || Clock::now() >= patient_until_) return false;
    std::this_thread::sleep_for(kCancelledInterval);
  }
  return earlier_call_ != 0;
}

bool RankGate::Visit::EarlierCallCommitted() {
  const auto last = gate_.LastEnded(own_key_);
  return earlier_call_ != 0 && last && last->call == earlier_call_ && last->is_committed;
}

// A generation of the gate begins with the first rank that comes. `ranks_revision`: nobody waited then.
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
  transaction.IfRevision(state_key_, seen.state_revision).Put(state_key_, state.Encode());
  if (ranks_revision) transaction.IfRangeUnchanged(ranks_begin_, ranks_end_, *ranks_revision);
  transaction.Delete(elected_key_);
  transaction.writes.push_back(std::move(record));
  return CommitArrival(transaction);
}

// True for a call of this daemon that is over. Those of other daemons go with their session.
bool RankGate::Visit::RenamerIsGone(const GateVisitor& renamer) const {
  return renamer.incarnation == gate_.incarnation_ && !gate_.IsLive(renamer.call);
}

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
