#include "fs/totals.h"

#include <chrono>

#include "base/clock.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

// Of a cluster whose names lie in an etcd: more inodes than anyone makes; numbers are 64 bits wide.
constexpr uint64_t kInodesMax = uint64_t{1} << 40;
// With so much of metadata it is counted how many more there is room for. Most take less.
constexpr uint64_t kBytesPerInode = 1024;
constexpr int kTriesMax = 4;
constexpr std::chrono::minutes kRestOfShared{10};     // of what other hosts change too
constexpr std::chrono::seconds kRestOfDisturbed{10};  // of what changed while it was counted
constexpr int kRestPerCount = 50;

}  // namespace

bool Totals::CountInodes() {
  const uint64_t changes = changes_;
  const int64_t made = made_;
  int64_t inodes = 0;
  const Status counted = ScanPrefix(at_.until_stop, at_.kv, "I", [&](const kv::KvEntry&) {
    inodes++;
    return true;
  });
  if (!counted.ok()) return false;
  counted_ = inodes - made;
  return changes == changes_;
}

bool Totals::BeginsCount() {
  if (Clock::Now() < due_.load() || is_counting_.exchange(true)) return false;
  began_ = Clock::Now();
  return true;
}

void Totals::EndCount(std::chrono::milliseconds rest) {
  const auto now = Clock::Now();
  due_ = now + std::max<Clock::duration>(rest, kRestPerCount * (now - began_.load()));
  is_counting_ = false;
}

void LocalTotals::Start() {
  BeginsCount();
  at().waiters.Post([this] {
    records_.Count(at().until_stop);
    Count();
  });
}

void LocalTotals::CountAgain() {
  if (!is_exact_ && BeginsCount()) at().waiters.Post([this] { Count(); });
}

void LocalTotals::Count() {
  is_exact_ = CountInodes();
  EndCount(kRestOfDisturbed);
}

void LocalTotals::AddInodes(FsSpace& space) {
  CountAgain();
  space.inodes_free = RoomBytes() / kBytesPerInode;
  space.inodes_total = inode_count() + space.inodes_free;
}

uint64_t LocalTotals::UnrecordedBytes(uint64_t& dirty_bytes) {
  uint64_t unrecorded = 0;
  dirty_bytes = 0;
  at().table.ForEachHeld([&](const InodePtr& inode) {
    uint64_t allocated = 0;
    {
      MutexLock lock(inode->mutex);
      if (!inode->content) return;
      dirty_bytes += inode->content->DirtyBytes();
      if (!inode->content->changed && !inode->content->unrecorded) return;
      allocated = inode->content->AllocatedBytes();
    }
    unrecorded += allocated - records_.AllocatedBytesOf(inode->id);
  });
  return unrecorded;
}

void LocalTotals::Fill(FsStatus& status) {
  CountAgain();
  status.inode_count = inode_count();
  status.metadata_room_bytes = RoomBytes();
  for (int tries = 1;; tries++) {
    // A record that is published between the two sums would be missing in both.
    const uint64_t recorded = records_.AllocatedBytes();
    status.logical_bytes = recorded + UnrecordedBytes(status.dirty_bytes);
    if (recorded == records_.AllocatedBytes() || tries == kTriesMax) break;
  }
  if (static_cast<int64_t>(status.logical_bytes) < 0) status.logical_bytes = 0;
}

void SharedTotals::AddInodes(FsSpace& space) {
  const std::optional<uint64_t> room = store_.RoomForNames();
  space.inodes_free = room ? *room / kBytesPerInode : kInodesMax - inode_count();
  space.inodes_total = inode_count() + space.inodes_free;
}

void SharedTotals::Fill(FsStatus& status) {
  status.inode_count = inode_count();
  status.metadata_room_bytes = store_.RoomForNames();
  CountAgain();
  status.logical_bytes = bytes_;
  at().table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (inode->content) status.dirty_bytes += inode->content->DirtyBytes();
  });
}

void SharedTotals::CountAgain() {
  if (!BeginsCount()) return;
  at().waiters.Post([this] {
    uint64_t bytes = 0;
    const Status records = ScanPrefix(at().until_stop, at().kv, "D", [&](const kv::KvEntry& entry) {
      auto record = meta::FileRecord::Decode(entry.value);
      if (record.ok()) bytes += record->allocated_bytes;
      return true;
    });
    if (records.ok()) bytes_ = bytes;
    CountInodes();
    EndCount(kRestOfShared);
  });
}

}  // namespace cairnfs::fs
