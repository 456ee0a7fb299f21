#include "fs/shared_collection.h"

#include <algorithm>

#include "base/clock.h"
#include "base/coding.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "cluster/held_dumps.h"
#include "cluster/holder_lists.h"

namespace cairnfs::fs {
namespace {

Failpoint shared_collect_recording("fs.shared_collect_recording", Failpoint::Kind::kKill);
Failpoint shared_collect_begun("fs.shared_collect_begun", Failpoint::Kind::kKill);
Failpoint shared_collect_marked("fs.shared_collect_marked", Failpoint::Kind::kKill);
Failpoint shared_collect_swept("fs.shared_collect_swept", Failpoint::Kind::kKill);

// Forgets what was recorded until then, as a node would that was started anew meanwhile and sweeps all the same.
Failpoint forget_recorded("fs.forget_recorded", Failpoint::Kind::kSkippable);

constexpr auto kLookEvery = std::chrono::seconds(1);    // whether another host calls
constexpr std::chrono::milliseconds kLookAgainMin{50};  // whether all are as far
constexpr std::chrono::milliseconds kLookAgainMax{1000};
constexpr auto kRememberEvery = std::chrono::minutes(1);  // which state of the store this host has seen
constexpr auto kAnswerMax = std::chrono::seconds(5);      // of the store, where a stop may wait for it
constexpr auto kOthersWaitMax = std::chrono::minutes(2);  // for a host that has a session and does nothing
constexpr auto kEndWaitMax = std::chrono::hours(1);       // for the others' sweeps, who asked for it
constexpr std::string_view kRememberedKey = "WA";         // in the node's engine: which state of the store it has seen

Error Stopped() { return MakeError(ErrorCode::kInterrupted, "the collection was stopped"); }

Error HeldUp(const std::string& why) {
  return MakeError(ErrorCode::kBusy, "nothing is collected: " + why +
                                         ". When the files are as they should be, allow it with: cairnfs gc "
                                         "--after-restore MOUNTPOINT");
}

}  // namespace

// A part goes with the session under which it was told: what comes after that is another turn.
Status SharedCollection::Tell(const Context& context, Turn& turn) {
  if (turn.session != host_.session()) return SessionLost("its part in the collection is over");
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, host_.epochs().Tell(context, turn.part));
  if (turn.part.phase == Part::Phase::kRecording && turn.recording_since == 0) turn.recording_since = revision;
  last_ = turn.part;
  told_under_ = turn.session;
  return {};
}

Status SharedCollection::Remember(const State& state) {
  const uint64_t number = state.announced ? state.announced->number : 0;
  remember_at_ = Clock::Now() + kRememberEvery;
  const Status written = engine_.Write(
      {{std::string(kRememberedKey), Encoder().U64(number).U64(state.revision).Take()}}, kv::WriteMode::kSynced);
  // A full disk must not keep chunks from being freed there.
  const bool is_full = !written.ok() && written.error().code == ErrorCode::kNoSpace;
  return is_full ? Status() : written;
}

Status SharedCollection::CheckStore(const Context& context, const State& state) {
  std::string why;
  if (!has_compared_) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto remembered, engine_.Get(std::string(kRememberedKey)));
    Decoder decoder(remembered ? std::string_view(*remembered) : std::string_view());
    const uint64_t number = decoder.U64(), revision = decoder.U64();
    const uint64_t number_now = state.announced ? state.announced->number : 0;
    const bool is_older = decoder.Finished() && (number > number_now || revision > state.revision);
    if (is_older) why = "the metadata is of an older state than this host has seen";
  }
  const uint64_t store_state = host_.store_state();
  if (store_state != store_state_) why = "the metadata went back to an older state";
  if (!why.empty()) {
    spdlog::error("collections are held up: {}", why);
    CAIRNFS_RETURN_IF_ERROR(host_.epochs().Hold(context, why));
  }
  if (!why.empty() || Clock::Now() >= remember_at_) CAIRNFS_RETURN_IF_ERROR(Remember(state));
  has_compared_ = true;
  store_state_ = store_state;
  if (why.empty() && state.hold) why = *state.hold;
  return why.empty() ? Status() : Status(HeldUp(why));
}

Status SharedCollection::Release() {
  CAIRNFS_RETURN_IF_ERROR(host_.epochs().Release({}));
  spdlog::info("collections are allowed again");
  return {};
}

bool SharedCollection::IsCalled(const Context& context) {
  const auto now = Clock::Now();
  if (now < look_at_ || host_.session() == 0) return false;
  look_at_ = now + kLookEvery;
  const Context bounded = context.WithTimeout(kAnswerMax);
  const auto state = host_.epochs().ReadAnnounced(bounded);
  if (!state.ok() || !CheckStore(bounded, *state).ok() || !state->announced) return false;
  return !HasTakenPart(*state);
}

bool SharedCollection::HasTakenPart(const State& state) const {
  return last_.has_ended() && told_under_ == host_.session() && last_.announcement == state.announced->revision;
}

Status SharedCollection::Record(const Context& context, const State& state, Turn& turn) {
  CAIRNFS_RETURN_IF_ERROR(Remember(state));
  // Chunks that no sync has indexed yet would be passed over.
  static_cast<void>(local_.Sync().ok());
  local_.BeginCollection();
  turn.is_recording = true;
  return Tell(context, turn);
}

Status SharedCollection::BeginEpoch(const Context& context, Turn& turn) {
  CAIRNFS_RETURN_IF_ERROR(host_.BeginEpoch(context));
  CAIRNFS_RETURN_IF_ERROR(host_.chunks().AwaitSafe(context.WithTimeout(kOthersWaitMax)));
  if (context.Expired()) return Stopped();
  turn.part.phase = Part::Phase::kBegun;
  return Tell(context, turn);
}

Result<SharedCollection::State> SharedCollection::AwaitAll(const Context& context, const Turn& turn,
                                                           CollectionProgress& progress, const char* what,
                                                           const std::function<bool(const Part&)>& fulfils) {
  for (std::chrono::milliseconds pause = kLookAgainMin;; pause = std::min(2 * pause, kLookAgainMax)) {
    CAIRNFS_ASSIGN_OR_RETURN(State state, host_.epochs().Read(context));
    CAIRNFS_RETURN_IF_ERROR(CheckStore(context, state));
    if (!state.announced || state.announced->revision != turn.part.announcement) {
      return MakeError(ErrorCode::kBusy, "another collection was announced meanwhile");
    }
    for (const auto& [node, part] : state.parts) {
      const bool has_failed = part.phase == Part::Phase::kFailed && part.announcement == turn.part.announcement;
      if (has_failed) {
        return MakeError(ErrorCode::kUnavailable, "host " + host_.NameOf(node.AsKey()) + ": " + part.error);
      }
    }
    if (turn.session != host_.session()) return SessionLost("its part in the collection is over");
    const auto behind = state.FindUnless(fulfils);
    if (!behind) return state;
    const std::string wait = std::string(what) + ": waits for host " + host_.NameOf(behind->AsKey());
    progress.SetPhase(wait);
    if (context.IsStopped()) return Stopped();
    if (!context.Sleep(pause) && !context.IsStopped()) return MakeError(ErrorCode::kUnavailable, wait);
  }
}

Status SharedCollection::Mark(const Context& context, CandidateSet& candidates, std::atomic<uint64_t>& inodes_marked) {
  candidates.Seal();
  const auto mark = [&](const Digest& digest) { candidates.Mark(digest); };
  return MarkAll(context, kv_, host_.chunks(), mark, inodes_marked);
}

Result<store::LiveTotals> SharedCollection::Count(const Context& context) {
  CandidateSet live;
  std::atomic<uint64_t> marked{0};
  const auto mark = [&]() -> Status {
    CAIRNFS_RETURN_IF_ERROR(local_.VisitChunks(context, [&](const Digest& digest, SegmentId) { live.Add(digest); }));
    return Mark(context, live, marked);
  };
  return CountMarked(context, local_, mark, [&](const Digest& digest) { return live.Contains(digest); });
}

Status SharedCollection::MarkAndSweep(const Context& context, const Turn& turn, uint64_t bytes_per_second_max,
                                      CollectionProgress& progress) {
  progress.SetPhase("mark");
  // What is here, or known to lie elsewhere.
  CandidateSet live;
  CAIRNFS_RETURN_IF_ERROR(local_.VisitChunks(context, [&](const Digest& digest, SegmentId) { live.Add(digest); }));
  CAIRNFS_RETURN_IF_ERROR(cluster::VisitHolders(engine_, [&](const Digest& digest) { live.Add(digest); }));
  CAIRNFS_RETURN_IF_ERROR(Mark(context, live, progress.inodes_marked));
  shared_collect_marked.Pass();
  CAIRNFS_ASSIGN_OR_RETURN(const State state, host_.epochs().Read(context));
  CAIRNFS_RETURN_IF_ERROR(CheckStore(context, state));
  if (turn.session != host_.session()) return SessionLost("its part in the collection is over");
  // First, because the sweep ends the recording.
  auto is_live = [&](const Digest& digest) { return live.Contains(digest); };
  const Status forgotten = host_.chunks().ForgetHolders(context, is_live);
  if (!forgotten.ok() && forgotten.error().code != ErrorCode::kNoSpace) return forgotten;
  if (forget_recorded.PassOrSkip()) local_.BeginCollection();
  progress.SetPhase("sweep");
  store::SweepOptions sweep;
  sweep.bytes_per_second_max = bytes_per_second_max;
  sweep.companion_key = cluster::HolderKey;
  CAIRNFS_RETURN_IF_ERROR(local_.Sweep(context, is_live, sweep, progress.sweep));
  shared_collect_swept.Pass();
  return {};
}

Status SharedCollection::TakeTurn(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress,
                                  Turn& turn) {
  CAIRNFS_ASSIGN_OR_RETURN(State state, host_.epochs().Read(context));
  CAIRNFS_RETURN_IF_ERROR(CheckStore(context, state));
  if (!state.announced) return MakeError(ErrorCode::kBusy, "no collection is announced");
  turn.part.announcement = state.announced->revision;
  const Context patience = context.WithTimeout(kOthersWaitMax);
  if (!state.HasEpoch()) {
    CAIRNFS_RETURN_IF_ERROR(Record(context, state, turn));
    shared_collect_recording.Pass();
    // Whoever sees first that all record puts the epoch.
    const auto records = [](const Part&) { return true; };
    for (;;) {
      CAIRNFS_ASSIGN_OR_RETURN(state, AwaitAll(patience, turn, progress, "announced", records));
      if (state.HasEpoch()) break;
      const Status put = host_.epochs().Begin(context, state);
      if (!put.ok() && put.error().code != ErrorCode::kConflict) return put;
    }
  }
  CAIRNFS_RETURN_IF_ERROR(BeginEpoch(context, turn));
  // A node that did not record before the epoch was put does not know who counts on it.
  const bool is_in_time = turn.recording_since != 0 && turn.recording_since < state.epoch->revision;
  if (!is_in_time) return {};
  shared_collect_begun.Pass();
  const auto has_begun = [](const Part& part) { return part.phase != Part::Phase::kRecording; };
  CAIRNFS_ASSIGN_OR_RETURN(state, AwaitAll(context.WithTimeout(kOthersWaitMax), turn, progress, "begun", has_begun));
  CAIRNFS_RETURN_IF_ERROR(MarkAndSweep(context, turn, bytes_per_second_max, progress));
  turn.has_freed = true;
  return {};
}

Result<bool> SharedCollection::TakePart(const Context& context, uint64_t bytes_per_second_max,
                                        CollectionProgress& progress) {
  Turn turn;
  turn.session = host_.session();
  progress.Reset();
  host_.chunks().HoldRepair(true);
  const Status taken = TakeTurn(context, bytes_per_second_max, progress, turn);
  if (turn.is_recording) local_.AbortCollection();  // without effect after a sweep
  host_.chunks().HoldRepair(false);
  if (turn.part.announcement == 0) return taken.error();
  const bool has_begun = turn.part.phase == Part::Phase::kBegun;
  turn.part.phase = has_begun ? Part::Phase::kDone : Part::Phase::kFailed;
  turn.part.chunks_freed = progress.sweep.chunks_freed;
  turn.part.bytes_freed = progress.sweep.bytes_freed;
  turn.part.ended_seconds = static_cast<uint64_t>(Clock::WallTime().seconds);
  if (!taken.ok()) turn.part.error = taken.error().message;
  const Status told = Tell(Context().WithTimeout(kAnswerMax), turn);  // also where this one was stopped
  CAIRNFS_RETURN_IF_ERROR(taken);
  CAIRNFS_RETURN_IF_ERROR(told);
  return turn.has_freed;
}

// What was deleted before the call is in the store. The marks of a collection that is announced now, or that this host
// has yet to begin, find that. One that is further may have marked already, and is waited for.
Status SharedCollection::Collect(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) {
  const Context patience = context.WithTimeout(kOthersWaitMax);
  CAIRNFS_RETURN_IF_ERROR(cluster::ReleaseEndedHolds(context, kv_));
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const State state, host_.epochs().Read(context));
    CAIRNFS_RETURN_IF_ERROR(CheckStore(context, state));
    // One in which nobody frees anything any more need not end everywhere.
    if (state.IsOver() || (patience.IsLate() && !state.IsSwept())) {
      const Status announced = host_.epochs().Announce(context, state);
      if (!announced.ok() && announced.error().code != ErrorCode::kConflict) return announced;
      if (announced.ok()) break;
    } else if (!HasTakenPart(state)) {
      const Result<bool> has_freed = TakePart(context, bytes_per_second_max, progress);
      if (has_freed.ok() && *has_freed) return AwaitEnd(context, progress);
    }
    if (context.IsStopped()) return Stopped();
    progress.SetPhase("waits for the collection before, or for a dump that holds");
    static_cast<void>(context.Sleep(kLookAgainMax));
  }
  const Result<bool> has_freed = TakePart(context, bytes_per_second_max, progress);
  if (!has_freed.ok()) return has_freed.error();
  return AwaitEnd(context, progress);
}

Status SharedCollection::AwaitEnd(const Context& context, CollectionProgress& progress) {
  Turn turn;
  turn.part = last_;
  turn.session = told_under_;
  const auto has_ended = [](const Part& part) { return part.has_ended(); };
  auto state = AwaitAll(context.WithTimeout(kEndWaitMax), turn, progress, "sweep", has_ended);
  if (!state.ok()) return state.error();
  progress.sweep.chunks_freed = progress.sweep.bytes_freed = 0;
  for (const auto& [node, part] : state->parts) {
    if (part.announcement != turn.part.announcement) continue;
    progress.sweep.chunks_freed += part.chunks_freed;
    progress.sweep.bytes_freed += part.bytes_freed;
    if (!part.error.empty()) {
      return MakeError(ErrorCode::kUnavailable, "host " + host_.NameOf(node.AsKey()) + ": " + part.error);
    }
  }
  return {};
}

}  // namespace cairnfs::fs
