// How many bytes of new chunks still fit, cheaply and on the safe side.
//
// These have room: the rest of the open segment, the segments that stand ready (prepared or freed), and what the disk
// has free beyond the reserve and the need of the metadata. The disk is asked at most every 100 ms, and sooner when a
// reservation would fail, or little is left for the metadata. A chunk's size is taken off each segment's room, because
// a chunk that does not fit the tail goes to the next segment.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "base/thread_annotations.h"
#include "io/file.h"
#include "kv/engine.h"

namespace cairnfs::store {

// How much of the reserve metadata leaves.
enum class Leaves { kFifth, kTenth };

class SpaceMeter {
 public:
  // `segment_bytes_min`: no smaller segment is made, so less free room than that counts as none. `metadata_use`: bytes
  // of the disk that the metadata takes; null: none. It is asked as often as the disk.
  SpaceMeter(io::Disk& disk, uint64_t reserve_bytes, uint64_t segment_bytes, uint64_t segment_bytes_min,
             std::function<kv::DiskUse()> metadata_use = nullptr);

  bool TryReserve(uint64_t bytes);
  void ReleaseReservation(uint64_t bytes) { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t ReservedBytes() const { return reserved_.load(std::memory_order_relaxed); }
  uint64_t AvailableBytes();  // less the reservations
  uint64_t DiskFreeBytes();   // the reserve included
  void Refresh();             // asks the disk now
  // Bytes of the disk that metadata may still take, once `unwritten_bytes` more are in it and it has all that it needs.
  // Asks the disk sooner while it is short: what was let in counts then.
  uint64_t MetadataRoom(uint64_t unwritten_bytes, Leaves leaves = Leaves::kFifth);
  uint64_t MetadataBytes() const { return metadata_held_bytes_.load(std::memory_order_relaxed); }
  uint64_t reserve_bytes() const { return reserve_bytes_; }

  // Kept up to date by the writer and the segment set.
  void SetOpenRoom(uint64_t bytes) { open_room_.store(bytes, std::memory_order_relaxed); }
  void SetPreparedRoom(uint64_t bytes) { prepared_room_.store(bytes, std::memory_order_relaxed); }
  void SetFreeSegmentsRoom(uint64_t bytes) { free_segments_room_.store(bytes, std::memory_order_relaxed); }

  // Bytes of the disk kept for metadata: the reserve, and what the metadata needs for its present content.
  uint64_t KeptBytes() const { return reserve_bytes_ + metadata_need_bytes_.load(std::memory_order_relaxed); }
  // Chunk bytes that a segment of this size would bring, were it made or taken up now.
  uint64_t RoomOfSegment(uint64_t segment_bytes) const {
    return segment_bytes < segment_bytes_min_ ? 0 : UsableBytes(segment_bytes);
  }
  // Chunk bytes that surely fit into a fresh segment of this size.
  static uint64_t UsableBytes(uint64_t segment_bytes);

 private:
  uint64_t RoomBytes() const;
  void RefreshIfOlder(std::chrono::milliseconds age);

  io::Disk& disk_;
  const uint64_t reserve_bytes_;
  const uint64_t segment_bytes_;
  const uint64_t segment_bytes_min_;
  const uint64_t slack_bytes_;
  const std::function<kv::DiskUse()> metadata_use_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> disk_free_{0};
  std::atomic<uint64_t> metadata_held_bytes_{0}, metadata_need_bytes_{0};
  std::atomic<int64_t> refreshed_at_ns_{0};
  std::atomic<uint64_t> open_room_{0}, prepared_room_{0}, free_segments_room_{0};
  Mutex refreshing_;
};

}  // namespace cairnfs::store
