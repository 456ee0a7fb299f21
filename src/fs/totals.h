// Totals: how much there is of inodes and bytes.
#pragma once

#include <algorithm>
#include <atomic>

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

  void NoteMade() { inode_count_++; }
  void NoteRemoved() { inode_count_--; }
  // What there is of inodes, and room for.
  virtual void AddInodes(FsSpace& space) const = 0;
  // The bytes and inodes of a status.
  virtual void Fill(FsStatus& status) = 0;
  // Where they are counted now and then: begins a count, if the last is old.
  virtual void CountAgain() {}
  uint64_t inode_count() const { return static_cast<uint64_t>(std::max<int64_t>(0, inode_count_.load())); }

 protected:
  void SetInodeCount(int64_t count) { inode_count_ = count; }
  const Parts& at() const { return at_; }

 private:
  const Parts at_;
  std::atomic<int64_t> inode_count_{0};  // exact once the first count is through
};

class LocalTotals final : public Totals {
 public:
  // Both outlive it.
  LocalTotals(const Parts& parts, kv::LocalKvStore& kv, const MetadataRoom& room)
      : Totals(parts), kv_(kv), records_(kv), room_(room) {}
  // Counts in the background. What is made and removed meanwhile is counted as it comes, and may for that one time be
  // counted twice.
  void Start();
  // Of the file's record; 0 where there is none.
  uint64_t AllocatedBytesOf(InodeId inode) { return records_.AllocatedBytesOf(inode); }
  void AddInodes(FsSpace& space) const override;
  void Fill(FsStatus& status) override;

 private:
  // What files in memory hold beyond their records, modulo 2^64: files may have shrunk. `dirty_bytes`: what of them is
  // not stored yet.
  uint64_t UnrecordedBytes(uint64_t& dirty_bytes);

  uint64_t RoomBytes() const { return room_.BytesForUsers(kv_.UnflushedBytes()); }

  kv::LocalKvStore& kv_;
  RecordTotals records_;
  const MetadataRoom& room_;
};

// Of a namespace that others change too, the sums are as of a count now and then, which somebody who wants to know
// starts.
class SharedTotals final : public Totals {
 public:
  // `store` keeps the names, and outlives it.
  SharedTotals(const Parts& parts, const kv::SharedKvStore& store) : Totals(parts), store_(store) {}
  void AddInodes(FsSpace& space) const override;
  void Fill(FsStatus& status) override;
  void CountAgain() override;

 private:
  const kv::SharedKvStore& store_;
  std::atomic<uint64_t> bytes_{0};       // of all records, as of the last count
  std::atomic<int64_t> counted_ms_{-1};  // steady clock: when that began; -1: never
};

}  // namespace cairnfs::fs
