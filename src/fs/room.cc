// Room for what is written: waiting for it, and knowing that none comes.
#include <future>

#include "base/clock.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

// A pool that gives no buffer back for so long may be full of bytes that find no room.
constexpr std::chrono::seconds kNoBufferPatience{1};
// So long it is believed what was found when that was tried; then it is tried again. No longer than the patience: what
// was found before a buffer came is nothing to who has waited since.
constexpr std::chrono::seconds kProbeHolds{1};
static_assert(kProbeHolds <= kNoBufferPatience);

Error NoSpace() { return MakeError(ErrorCode::kNoSpace, "no space for new data"); }

}  // namespace

void FileSystem::Impl::CollectAndWait() {
  std::promise<void> collected;
  collector->Request([&](Result<CollectionStatus>) { collected.set_value(); });
  collected.get_future().wait();
}

Status FileSystem::Impl::ReserveOrWait(uint64_t bytes) {
  // A round stores all that was accepted; only what was new has used room.
  auto status = rounds->RequestAndWait(SyncRounds::Scope::kNames);
  if (parts.local_chunks.TryReserve(bytes)) return {};
  if (!status.ok() && status.error().code != ErrorCode::kNoSpace) {
    // Who would delete old checkpoints to make room would do so for nothing on a disk that is broken.
    if (auto failure = rounds->DiskFailure()) return *failure;
    return NoSpace();
  }
  // What nothing names any more may be most of the disk. One collection serves all who wait; when it was in vain, the
  // next few writers need not try again, unless something was freed since.
  using namespace std::chrono;
  int64_t now_ms = duration_cast<milliseconds>(Clock::Now().time_since_epoch()).count();
  const uint64_t count_before = free_count;
  if (now_ms - vain_collection_ms < 1000 && count_before == free_count_at_vain_collection) return NoSpace();
  CollectAndWait();
  if (parts.local_chunks.TryReserve(bytes)) return {};
  free_count_at_vain_collection = count_before;
  vain_collection_ms = duration_cast<milliseconds>(Clock::Now().time_since_epoch()).count();
  return NoSpace();
}

std::optional<Error> FileSystem::WhyNoBufferComes(std::chrono::milliseconds without_release,
                                                  Clock::time_point waits_since) {
  if (without_release < kNoBufferPatience || !impl_->found_no_room) return std::nullopt;
  Impl::RoomProbe& probe = impl_->room_probe;
  MutexLock lock(probe.mutex);
  // Who has just deleted something has perhaps made room, and is not told what was found before.
  const bool is_of_now = waits_since <= probe.began_at || probe.free_count == impl_->free_count;
  if (is_of_now && Clock::Now() - probe.ended_at < kProbeHolds) return probe.why;
  if (!std::exchange(probe.is_running, true)) impl_->space_waiters->Post([this] { impl_->ProbeRoom(); });
  return std::nullopt;
}

// A round tries all of them again, and ends only when it is known how that went.
std::optional<Error> FileSystem::Impl::RetryWithoutRoom() {
  found_no_room = false;
  const Status round = rounds->RequestAndWait(SyncRounds::Scope::kNames);
  // One that fails may not even have come to try.
  if (!round.ok() && !found_no_room.exchange(true)) {
    if (round.error().code == ErrorCode::kNoSpace) return NoSpace();
    return rounds->DiskFailure();
  }
  if (!found_no_room) return std::nullopt;
  // The round may have taken long over something else, and room have come meanwhile. What the meter says is an
  // estimate.
  if (Clock::Now() - no_room_at.load() < kProbeHolds) return NoSpace();
  if (!parts.local_chunks.TryReserve(io::BufferPool::kPayloadBytes)) return NoSpace();
  parts.local_chunks.ReleaseReservation(io::BufferPool::kPayloadBytes);
  return std::nullopt;
}

void FileSystem::Impl::ProbeRoom() {
  const auto began_at = Clock::Now();
  const uint64_t count_before = free_count;
  std::optional<Error> why = RetryWithoutRoom();
  // What was deleted since such a collection was last in vain may have held most of the disk.
  if (why && why->code == ErrorCode::kNoSpace && count_before != free_count_at_vain_collection) {
    CollectAndWait();
    // Twice: what was still being put when the first began may have found no room before the collection made some.
    for (int times = 0; times < 2 && why; ++times) why = RetryWithoutRoom();
    if (why) free_count_at_vain_collection = count_before;
  }
  MutexLock lock(room_probe.mutex);
  room_probe.why = std::move(why);
  room_probe.free_count = count_before;
  room_probe.began_at = began_at;
  room_probe.ended_at = Clock::Now();
  room_probe.is_running = false;
}

void FileSystem::NoteRefused(const WriteRequest& request, const Error& why) {
  if (!request.from_page_cache) return;
  HandlePtr handle = request.handle == 0 ? nullptr : impl_->handles.Find(request.handle);
  InodePtr inode = handle ? handle->inode : impl_->table.Find(request.inode);
  if (inode) impl_->LosePages(request, inode, why);
}

}  // namespace cairnfs::fs
