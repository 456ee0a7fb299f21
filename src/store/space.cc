#include "store/space.h"

#include <algorithm>

#include "base/clock.h"
#include "store/segment_format.h"

namespace cairnfs::store {
namespace {

constexpr std::chrono::milliseconds kRefreshInterval{100};
constexpr std::chrono::milliseconds kRefreshIntervalWhenShort{2};
constexpr uint64_t kTailLoss = 2 * kMiB;
// Below it names could take what is left while it counts as free still.
constexpr uint64_t kMetadataRoomShort = 64 * kMiB;

int64_t NowNanoseconds() { return Clock::Now().time_since_epoch().count(); }

// Record headers, padding at syncs.
uint64_t WithOverhead(uint64_t bytes) { return bytes + bytes / 128; }

}  // namespace

SpaceMeter::SpaceMeter(io::Disk& disk, uint64_t reserve_bytes, uint64_t segment_bytes, uint64_t segment_bytes_min,
                       std::function<kv::DiskUse()> metadata_use)
    : disk_(disk),
      reserve_bytes_(reserve_bytes),
      segment_bytes_(segment_bytes),
      segment_bytes_min_(segment_bytes_min),
      slack_bytes_(std::min<uint64_t>(kMiB, segment_bytes / 8)),
      metadata_use_(std::move(metadata_use)) {
  Refresh();
}

uint64_t SpaceMeter::UsableBytes(uint64_t segment_bytes) {
  if (segment_bytes <= kSegmentHeaderBytes) return 0;
  uint64_t room = segment_bytes - kSegmentHeaderBytes;
  return room - std::min(room / 2, kTailLoss);
}

void SpaceMeter::Refresh() {
  refreshed_at_ns_.store(NowNanoseconds(), std::memory_order_relaxed);
  auto space = disk_.GetSpace();
  if (space.ok()) disk_free_.store(space->free_bytes, std::memory_order_relaxed);
  if (!metadata_use_) return;
  const kv::DiskUse use = metadata_use_();
  metadata_held_bytes_.store(use.held_bytes, std::memory_order_relaxed);
  metadata_need_bytes_.store(use.needed_bytes, std::memory_order_relaxed);
}

void SpaceMeter::RefreshIfOlder(std::chrono::milliseconds age) {
  auto too_old = [&] {
    return NowNanoseconds() - refreshed_at_ns_.load(std::memory_order_relaxed) > std::chrono::nanoseconds(age).count();
  };
  if (!too_old() || !refreshing_.TryLock()) return;
  if (too_old()) Refresh();
  refreshing_.Unlock();
}

uint64_t SpaceMeter::RoomBytes() const {
  uint64_t disk_free = disk_free_.load(std::memory_order_relaxed);
  const uint64_t kept = KeptBytes();
  uint64_t allocatable = disk_free > kept ? disk_free - kept : 0;
  uint64_t room = allocatable / segment_bytes_ * UsableBytes(segment_bytes_) +
                  RoomOfSegment(AlignDown(allocatable % segment_bytes_, kPageBytes));
  return room + open_room_.load(std::memory_order_relaxed) + prepared_room_.load(std::memory_order_relaxed) +
         free_segments_room_.load(std::memory_order_relaxed);
}

uint64_t SpaceMeter::AvailableBytes() {
  RefreshIfOlder(kRefreshInterval);
  uint64_t taken = WithOverhead(reserved_.load(std::memory_order_relaxed)) + slack_bytes_;
  uint64_t room = RoomBytes();
  return room > taken ? room - taken : 0;
}

uint64_t SpaceMeter::DiskFreeBytes() {
  RefreshIfOlder(kRefreshInterval);
  return disk_free_.load(std::memory_order_relaxed);
}

uint64_t SpaceMeter::MetadataRoom(uint64_t unwritten_bytes, Leaves leaves) {
  const auto room = [&]() -> uint64_t {
    // Twice, because the bytes are in the log and in tables for a while.
    const uint64_t needed = metadata_need_bytes_.load(std::memory_order_relaxed) + 2 * unwritten_bytes;
    const uint64_t kept = reserve_bytes_ / (leaves == Leaves::kFifth ? 5 : 10) + needed;
    const uint64_t disk_free = disk_free_.load(std::memory_order_relaxed);
    return disk_free > kept ? disk_free - kept : 0;
  };
  RefreshIfOlder(kRefreshInterval);
  if (room() < kMetadataRoomShort) RefreshIfOlder(kRefreshIntervalWhenShort);
  return room();
}

bool SpaceMeter::TryReserve(uint64_t bytes) {
  RefreshIfOlder(kRefreshInterval);
  uint64_t taken = reserved_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (WithOverhead(taken) + slack_bytes_ <= RoomBytes()) return true;
  RefreshIfOlder(kRefreshIntervalWhenShort);
  if (WithOverhead(taken) + slack_bytes_ <= RoomBytes()) return true;
  reserved_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

}  // namespace cairnfs::store
