// LocalPublisher: the rounds of a host alone. Names and records are written to memory first; a round freezes them,
// drains the files, syncs the chunks, and flushes what was frozen.
// Where the disk is slow, what waits is too much for one round: then a round takes what was done before a freeze point.
//
// Invariant: what FlushFrozen writes names only chunks that ChunkStore::Sync has made durable before, and holds for
// each file changed before the freeze a record with every byte accepted before it.
#pragma once

#include <atomic>
#include <map>
#include <shared_mutex>
#include <vector>

#include "base/thread_annotations.h"
#include "fs/publisher.h"

namespace cairnfs::fs {

class LocalPublisher final : public Publisher {
 public:
  // All outlive it.
  LocalPublisher(kv::LocalKvStore& kv, store::LocalChunkStore& chunks, DirtyFiles& files, InodeTable& table,
                 uint64_t freeze_step_bytes)
      : kv_(kv), chunks_(chunks), files_(files), table_(table), step_bytes_min_(freeze_step_bytes) {}

  void BeginOperation() override;
  void EndOperation() override { gate_.unlock_shared(); }
  Admission Admit(NameChange change) const override;
  bool AdmitsWhileFailing(NameChange change) const override;
  bool HasUnflushedNames() const override;
  bool NoteClosed(uint64_t bytes) override;
  void AddFreezePoint() override;
  void DropFreezePoints() override;
  size_t freeze_points() const override { return kv_.freeze_points(); }
  uint64_t UnwrittenBytes() const override { return kv_.UnflushedBytes() + files_.RecordBytesMax(); }
  bool MayRunOnCaller() const override;
  bool IsDiskFailure(const Error& error) const override;
  bool is_open() const override { return is_open_; }
  std::map<InodeId, uint64_t> Unflushed() const override {
    MutexLock lock(mutex_);
    return unflushed_;
  }

  Status ResolveDoubt() override { return {}; }
  void Open(const DirtyFiles::Selection& selection) override;
  Status Finish(const Round& round) override;
  void Stop() override;

 private:
  struct Batch {
    std::vector<kv::KvWrite> writes;
    std::vector<store::ChunkPin> pins;  // given up once the records that name the chunks can be read
    std::vector<InodePtr> whole;        // of which all is in the record
  };
  void DropFreezePoint(size_t index) REQUIRES_LOCK(points_mutex_);
  std::vector<InodePtr> Freeze(DirtyFiles::Selection selection);
  Status Publish(const InodePtr& inode, uint64_t round_number, Batch& batch);
  void PublishTaken(uint64_t round_number);

  kv::LocalKvStore& kv_;
  store::LocalChunkStore& chunks_;
  DirtyFiles& files_;
  InodeTable& table_;

  // A freeze takes the gate exclusively. The turnstile keeps a stream of operations from shutting a freeze out.
  Mutex turnstile_;
  std::shared_mutex gate_;

  const uint64_t step_bytes_min_;  // of closed files between two freeze points
  Mutex points_mutex_;             // after inodes'; that the store and the files drop the same freeze points
  uint64_t step_bytes_ GUARDED_BY(points_mutex_) = step_bytes_min_;
  uint64_t closed_bytes_ GUARDED_BY(points_mutex_) = 0;  // since the last freeze point
  bool has_asked_for_point_ GUARDED_BY(points_mutex_) = false;

  std::atomic<bool> is_open_{false};  // set by the thread that runs the round

  mutable Mutex mutex_;  // after inodes'
  std::map<InodeId, uint64_t> unflushed_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
