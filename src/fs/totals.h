// Totals: how much there is of inodes and bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/clock.h"
#include "base/task_queue.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/metadata_room.h"
#include "fs/record_totals.h"
#include "kv/shared_store.h"

namespace cairnfs::fs {

// All functions: any thread.
class Totals {
 public:
  struct Parts {  // all outlive it
    kv::KvStore& kv;
    InodeTable& table;
    TaskQueue& waiters;
    Context until_stop;
  };
  explicit Totals(const Parts& parts) : at_(parts) {}
  virtual ~Totals() = default;

  void NoteMade() { NoteChange(1); }
  void NoteRemoved() { NoteChange(-1); }
  // What there is of inodes, and room for.
  virtual void AddInodes(FsSpace& space) = 0;
  // The bytes and inodes of a status.
  virtual void Fill(FsStatus& status) = 0;
  // Begins a count, if there is none that holds, or it is old.
  virtual void CountAgain() = 0;
  // What the last count has found, and what this host has made since.
  uint64_t inode_count() const { return static_cast<uint64_t>(std::max<int64_t>(0, counted_ + made_)); }

 protected:
  // Counts all inodes. What this host makes or removes meanwhile may count twice, or not at all: false then, and when
  // the count was cut short. Blocks.
  bool CountInodes();
  // Whether a count is due; then it begins now, and none does before EndCount.
  bool BeginsCount();
  // The next one is due after that rest, or after many times what this one has taken.
  void EndCount(std::chrono::milliseconds rest);
  const Parts& at() const { return at_; }

 private:
  void NoteChange(int64_t made) {
    made_ += made;
    changes_++;
  }

  const Parts at_;
  std::atomic<int64_t> counted_{0};   // by the last count, less what had been made by then
  std::atomic<int64_t> made_{0};      // by this host, less what it has removed
  std::atomic<uint64_t> changes_{0};  // of made_
  std::atomic<bool> is_counting_{false};
  std::atomic<Clock::time_point> began_{}, due_{};  // the last count, and the next one
};

class LocalTotals final : public Totals {
 public:
  // Both outlive it.
  LocalTotals(const Parts& parts, kv::LocalKvStore& kv, const MetadataRoom& room)
      : Totals(parts), kv_(kv), records_(kv), room_(room) {}
  void Start();  // counts in the background
  // Of the file's record; 0 where there is none.
  uint64_t AllocatedBytesOf(InodeId inode) { return records_.AllocatedBytesOf(inode); }
  void AddInodes(FsSpace& space) override;
  void Fill(FsStatus& status) override;
  void CountAgain() override;

 private:
  void Count();
  // What files in memory hold beyond their records, modulo 2^64: files may have shrunk. `dirty_bytes`: what of them is
  // not stored yet.
  uint64_t UnrecordedBytes(uint64_t& dirty_bytes);

  uint64_t RoomBytes() const { return room_.BytesForUsers(kv_.UnflushedBytes()); }

  kv::LocalKvStore& kv_;
  RecordTotals records_;
  const MetadataRoom& room_;
  std::atomic<bool> is_exact_{false};  // the count holds, as nobody else changes them
};

// Of a namespace that others change too, the sums are as of a count now and then, which somebody who wants to know
// starts.
class SharedTotals final : public Totals {
 public:
  // `store` keeps the names, and outlives it.
  SharedTotals(const Parts& parts, const kv::SharedKvStore& store) : Totals(parts), store_(store) {}
  void AddInodes(FsSpace& space) override;
  void Fill(FsStatus& status) override;
  void CountAgain() override;

 private:
  const kv::SharedKvStore& store_;
  std::atomic<uint64_t> bytes_{0};  // of all records, as of the last count
};

}  // namespace cairnfs::fs
