#include "fs/room.h"

#include <algorithm>
#include <future>
#include <utility>

#include "io/buffer_pool.h"

namespace cairnfs::fs {
namespace {

// A pool that gives no buffer back for so long may be full of bytes that find no room.
constexpr std::chrono::seconds kNoBufferPatience{1};
// So long it is believed what was found when that was tried; then it is tried again. No longer than the patience: what
// was found before a buffer came is nothing to who has waited since.
constexpr std::chrono::seconds kProbeHolds{1};
static_assert(kProbeHolds <= kNoBufferPatience);

// After a collection in vain so long passes before the next, but for those who have reason to think that there is room.
constexpr int kHoldPerCollection = 2;
constexpr std::chrono::nanoseconds kVainHoldsMin = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kVainHoldsMax = std::chrono::seconds(30);
// More than others write to the disk between two looks at its room, 100 ms.
constexpr uint64_t kPlentyBytes = 256 * kMiB;
// With less for names, those that are let in may find none.
constexpr uint64_t kFewBytes = kMiB;
// So long after bytes found no room the meter is not relied on.
constexpr std::chrono::seconds kNoneHolds{10};
constexpr unsigned kThreads = 8;
// The room of deleted names comes back in the background, within half a minute.
constexpr std::chrono::milliseconds kRoomComesBackPoll{200};
constexpr int kNamesComeBackPolls = 100;
// Among several hosts nodes tell that they have room again, and then take the copies that lacked.
constexpr int kNodesComeBackPolls = 50;

Error NoSpace() { return MakeError(ErrorCode::kNoSpace, "no space for new data"); }

// An error: no round can make room for what is to tell of the change. Who fills the disk does not cause one each time.
Status CheckRoundHelps(kv::NameRoom& names, const Room::Wanted& wanted) {
  if (names.Judge(wanted.change, wanted.uid, 0).ok()) return {};
  return names.Admit(wanted.change, wanted.uid, 0);
}

}  // namespace

Room::Room(const Parts& parts)
    : chunks_(parts.chunks),
      names_(parts.names),
      rounds_(parts.rounds),
      collection_(parts.collection),
      waiters_(std::make_unique<TaskQueue>("cairn-space", kThreads)) {}

void Room::NoteFreed(uint64_t bytes) {
  if (bytes > 0) free_count_++;
  collection_.NoteFreed(bytes);
}

bool Room::NoteNone() {
  none_at_ = Clock::Now();
  found_none_ = true;
  collection_.NoteNoRoom();
  if (!HoldsTrash() || (!lacks_nodes_ && !IsLocalRoomShort())) return false;
  if (is_making_room_.exchange(true)) return true;
  waiters_->Post([this, emptyings = emptyings()] {
    is_making_room_ = false;
    static_cast<void>(EmptyTrashSince(emptyings));
  });
  return true;
}

bool Room::MayBeShort() const {
  return Clock::Now() - none_at_.load() < kNoneHolds || chunks_.AvailableBytes() < kPlentyBytes;
}

void Room::WaitForSpace(const Wanted& wanted, Done<void> write) {
  waiters_->Post([this, wanted, write = std::move(write)] { write(ReserveOrWait(wanted)); });
}

void Room::WhenAdmitted(NameChange change, uint32_t uid, Done<void> go) {
  rounds_.WhenAdmitted(change, [this, change, uid, go = std::move(go)](const Status& admitted) {
    if (admitted.ok() && Has({change, uid}) && MayWaitForNames(change)) return waiters_->Post([go] { go({}); });
    if (!admitted.ok() || Has({change, uid})) return go(admitted);
    Status helps = CheckRoundHelps(names_, {change, uid});
    if (!helps.ok() && !(LacksNames() && HoldsTrash())) return go(helps);
    waiters_->Post([this, change, uid, go] {
      static_cast<void>(rounds_.RequestAndWait(SyncRounds::Scope::kNames).ok());
      go(AdmitWithTrash(change, uid));
    });
  });
}

// By its transaction, in OnceThereIsRoom: the room that there is now is soon taken. A thread that receives requests
// must not wait there.
bool Room::MayWaitForNames(NameChange change) const {
  return change == NameChange::kMakes && names_.BytesForUsers(rounds_.UnwrittenBytes()) < kFewBytes && HoldsTrash();
}

Room::Collected Room::CollectAndWait() {
  const auto began = Clock::Now();
  std::promise<Status> collected;
  collection_.Request([&](const Result<CollectionStatus>& status) {
    collected.set_value(status.ok() ? Status() : Status(status.error()));
  });
  Status status = collected.get_future().get();
  return {Clock::Now() - began, std::move(status)};
}

// Where there is plenty of it, that something found none has another cause, as a lack of descriptors.
bool Room::IsLocalRoomShort() const { return chunks_.AvailableBytes() < kPlentyBytes || LacksNames(); }

bool Room::EmptyTrashUnless(const std::function<bool()>& has_room) {
  if (!HoldsTrash()) return has_room();
  MutexLock lock(emptying_);
  if (has_room()) return true;
  if (!IsLocalRoomShort() && !(lacks_nodes_ && lacks_nodes_())) return false;
  is_emptying_ = true;
  const bool has_emptied = trash_->EmptyOldest();
  const Status collected = has_emptied ? CollectEmptied() : Status();
  is_emptying_ = false;
  if (!has_emptied) return false;
  // For lack of room itself it may succeed once more is gone; otherwise more would go for nothing.
  return collected.ok() || collected.error().code == ErrorCode::kNoSpace || has_room();
}

Status Room::CollectEmptied() {
  free_count_++;
  static_cast<void>(rounds_.RequestAndWait(SyncRounds::Scope::kNames).ok());  // which removes the records
  Status collected = CollectAndWait().status;
  Poll(kNodesComeBackPolls, [this] { return !lacks_nodes_ || !lacks_nodes_(); });
  emptyings_++;
  // What was being put meanwhile may have found no room yet, and is tried again.
  static_cast<void>(rounds_.RequestAndWait(SyncRounds::Scope::kNames).ok());
  return collected;
}

bool Room::EmptyTrashThen(uint64_t emptyings, std::function<void(bool has_made)> then) {
  if (!HoldsTrash() && emptyings_ == emptyings) return false;
  waiters_->Post([this, emptyings, then = std::move(then)] { then(EmptyTrashSince(emptyings)); });
  return true;
}

bool Room::MakeRoomForNames(const Wanted& wanted, uint64_t emptyings) {
  const auto has_room = [&] { return Has(wanted); };
  if (emptyings_ != emptyings) return true;
  if (has_room() || !LacksNames() || !EmptyTrashSince(emptyings)) return false;
  AwaitNames(has_room);
  return true;
}

Status Room::AdmitWithTrash(NameChange change, uint32_t uid) {
  const auto has_room = [&] { return Has({change, uid}); };
  while (!has_room() && LacksNames() && EmptyTrashUnless(has_room)) AwaitNames(has_room);
  return Admit(change, uid);
}

void Room::AwaitNames(const std::function<bool()>& has_room) { Poll(kNamesComeBackPolls, has_room); }

void Room::Poll(int times, const std::function<bool()>& has_room) {
  for (int poll = 0; poll < times && !has_room() && !trash_->IsStopped(); ++poll) Clock::SleepFor(kRoomComesBackPoll);
}

Error Room::WhyNoSpace(const Wanted& wanted) {
  const Status admitted = Admit(wanted.change, wanted.uid);
  return admitted.ok() ? NoSpace() : admitted.error();
}

// What is in the trash goes before anybody is refused.
Status Room::ReserveOrWait(const Wanted& wanted) {
  Status status = ReserveAfterCollection(wanted);
  bool is_reserved = status.ok();
  const auto reserve = [&] { return is_reserved = is_reserved || Reserve(wanted); };
  const auto may_help = [&] { return status.error().code == ErrorCode::kNoSpace && (Has(wanted) || LacksNames()); };
  while (!is_reserved && may_help() && EmptyTrashUnless(reserve)) {
    if (!Has(wanted)) AwaitNames([&] { return Has(wanted); });
    static_cast<void>(reserve());
  }
  return is_reserved ? Status() : status;
}

Status Room::ReserveAfterCollection(const Wanted& wanted) {
  // A round stores all that was accepted; only what was new has used room.
  auto status = rounds_.RequestAndWait(SyncRounds::Scope::kNames);
  if (Reserve(wanted)) return {};
  if (!status.ok() && status.error().code != ErrorCode::kNoSpace) {
    // Who would delete old checkpoints to make room would do so for nothing on a disk that is broken.
    if (auto failure = rounds_.DiskFailure()) return *failure;
    return WhyNoSpace(wanted);
  }
  if (!Has(wanted)) return WhyNoSpace(wanted);
  // What nothing names any more may be most of the disk. One collection serves all who wait; when it was in vain, the
  // next few writers need not try again, unless something was freed since.
  const uint64_t count_before = free_count_;
  const bool is_vain_of_late = Clock::Now() < vain_until_.load();
  const bool are_same = collection_.runs_total() == runs_at_vain_collection_;  // or other hosts have deleted something
  if (is_vain_of_late && are_same && count_before == free_count_at_vain_collection_) return WhyNoSpace(wanted);
  const std::chrono::nanoseconds taken = CollectAndWait().taken;
  if (Reserve(wanted)) return {};
  free_count_at_vain_collection_ = count_before;
  runs_at_vain_collection_ = collection_.runs_total();
  // One over several hosts keeps all of them busy.
  vain_until_ = Clock::Now() + std::clamp(kHoldPerCollection * taken, kVainHoldsMin, kVainHoldsMax);
  return WhyNoSpace(wanted);
}

std::optional<Error> Room::WhyNoBufferComes(std::chrono::milliseconds without_release, Clock::time_point waits_since) {
  if (without_release < kNoBufferPatience || !found_none_) return std::nullopt;
  MutexLock lock(mutex_);
  // Who has just deleted something has perhaps made room, and is not told what was found before.
  const bool is_of_now = waits_since <= probe_began_at_ || probe_free_count_ == free_count_;
  if (is_of_now && Clock::Now() - probe_ended_at_ < kProbeHolds) return why_;
  if (!std::exchange(is_probing_, true)) waiters_->Post([this] { Probe(); });
  return std::nullopt;
}

// A round tries all of them again, and ends only when it is known how that went.
std::optional<Error> Room::RetryWithoutRoom() {
  found_none_ = false;
  const Status round = rounds_.RequestAndWait(SyncRounds::Scope::kNames);
  // One that fails may not even have come to try.
  if (!round.ok() && !found_none_.exchange(true)) {
    if (round.error().code == ErrorCode::kNoSpace) return NoSpace();
    return rounds_.DiskFailure();
  }
  if (!found_none_) return std::nullopt;
  // The round may have taken long over something else, and room have come meanwhile. What the meter says is an
  // estimate.
  if (Clock::Now() - none_at_.load() < kProbeHolds) return NoSpace();
  if (!chunks_.TryReserve(io::BufferPool::kPayloadBytes)) return NoSpace();
  chunks_.ReleaseReservation(io::BufferPool::kPayloadBytes);
  return std::nullopt;
}

void Room::Probe() {
  const auto began_at = Clock::Now();
  const uint64_t count_before = free_count_;
  std::optional<Error> why = RetryWithoutRoom();
  // What was deleted since such a collection was last in vain may have held most of the disk.
  if (why && why->code == ErrorCode::kNoSpace && count_before != free_count_at_vain_collection_) {
    static_cast<void>(CollectAndWait());
    // Twice: what was still being put when the first began may have found no room before the collection made some.
    for (int times = 0; times < 2 && why; ++times) why = RetryWithoutRoom();
    if (why) free_count_at_vain_collection_ = count_before;
  }
  for (uint64_t emptied = emptyings_; why && why->code == ErrorCode::kNoSpace && EmptyTrashSince(emptied);) {
    emptied = emptyings_;
    why = RetryWithoutRoom();
  }
  MutexLock lock(mutex_);
  why_ = std::move(why);
  probe_free_count_ = count_before;
  probe_began_at_ = began_at;
  probe_ended_at_ = Clock::Now();
  is_probing_ = false;
}

}  // namespace cairnfs::fs
