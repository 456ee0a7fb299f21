// DirtyFiles: the files whose content differs from their record. The round that runs takes some of them over.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "fs/extent_merges.h"
#include "fs/inode.h"
#include "fs/streams.h"

namespace cairnfs::fs {

class DirtyFiles {
 public:
  // All outlive it.
  DirtyFiles(store::ChunkStore& chunks, store::LocalChunkStore& local, Streams& streams, InodeTable& table)
      : chunks_(chunks), streams_(streams), merges_(local, streams.params()), table_(table) {}

  // Any thread.

  // The content differs from its record from now on. REQUIRES: it did not.
  void Add(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The file still differs: it is for the next round.
  void Requeue(const InodePtr& inode) EXCLUDES_LOCK(mutex_);
  bool empty() const EXCLUDES_LOCK(mutex_);
  std::vector<InodeId> Dirty() const EXCLUDES_LOCK(mutex_);
  // What the records that are still to be published may take, but for those of files so large that their pages take
  // more room (recipe.h).
  uint64_t RecordBytesMax() const;
  // Files that could not be published, while others were, each with the reason. Takes inodes' locks.
  std::map<InodeId, Error> Failed() EXCLUDES_LOCK(mutex_);
  void NoteFailed(InodeId inode) EXCLUDES_LOCK(mutex_);

  // On one host, where names are frozen in their order. REQUIRES (unchecked): no operation on names runs, nor do
  // TakeOver and the other of these two. docs/architecture.md says what freeze points are for.

  void AddFreezePoint();
  // The files of the point are those of the next one, or of none. REQUIRES: there is such a point.
  void DropFreezePoint(size_t index) EXCLUDES_LOCK(mutex_);

  // The thread that runs the round.

  enum class Which {
    kAll,
    kClosed,   // also those with must_publish, or with many unpublished chunks
    kToPoint,  // what kClosed would have taken at the first freeze point; where there is none: kClosed
  };
  struct Selection {
    Which which = Which::kAll;
    // Among several hosts, where each file is published for itself:
    std::optional<std::set<InodeId>> among = {};  // no others
    // Those taken have no more unpublished bytes, unless it is one file alone: the smallest first.
    uint64_t bytes_max = UINT64_MAX;
  };
  // Takes over the files of the round, in the order in which they were changed. Returns files that need no publish any
  // more: the caller calls Unhold on them when no operation waits for the round.
  std::vector<InodePtr> TakeOver(const Selection& selection);
  // Those of the last selection that bytes_max left to others. Once.
  std::set<InodeId> TakeLeft() { return std::exchange(left_, {}); }
  const std::vector<InodePtr>& taken() const { return taken_; }
  void ClearTaken();
  struct Undrained {
    InodePtr inode;
    Error why;
  };
  // Waits until all bytes that the files accepted before the round are stored. Returns the files for which that failed:
  // of those, what is stored is published.
  std::vector<Undrained> Drain();
  // Time is short, and the round leaves files out: what it takes goes to the disk before those, and is all that it
  // waits for.
  bool goes_first() const { return closed_go_first && has_left_out_; }
  // The record of what is stored of the file. On failure the next round takes the file again.
  Result<meta::FileRecord> MakeRecord(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The record has all of the file again. Its content leaves memory when nobody has the file open.
  void Release(const InodePtr& inode);

  bool closed_go_first = false;  // not always: files that are left out would wait for as long as others are closed
  // For those who wait for all files. In this round, bytes of some file found no space, and wait for the next.
  std::optional<Error> shortage;
  std::optional<Error> loss;  // bytes of some file could not be stored, and nobody was told so far
  // Bytes that were accepted have found no room, or are lost, since this process began. Set by any thread, and by what
  // Drain waits for before that returns.
  std::atomic<bool> bytes_lacked{false};
  // Of the last publish of what counts for a quota: the revision of the store. Among several hosts.
  std::atomic<uint64_t> counted_revision{0};

 private:
  static bool IsReady(const Inode& inode) REQUIRES_LOCK(inode.mutex);
  static bool Selects(const Selection& selection, const Inode& inode) REQUIRES_LOCK(inode.mutex);
  bool DiscardIfGone(const InodePtr& inode);
  std::optional<Error> WhyFailed(InodeId id) EXCLUDES_LOCK(mutex_);

  store::ChunkStore& chunks_;
  Streams& streams_;
  const ExtentMerges merges_;
  InodeTable& table_;

  mutable Mutex mutex_;  // after inodes' and that of the rounds
  std::vector<InodePtr> dirty_ GUARDED_BY(mutex_);
  std::deque<std::vector<InodePtr>> freeze_points_ GUARDED_BY(mutex_);  // of each its files, which `dirty_` lacks
  std::set<InodeId> failed_ GUARDED_BY(mutex_);                         // and perhaps published or dropped since

  std::vector<InodePtr> taken_;   // the round's, which changes it with the lock held
  std::set<InodeId> left_;        // by bytes_max
  bool has_left_out_ = false;     // files that differ
  std::atomic<size_t> count_{0};  // of both
};

// What a record says for its quota, to be written with it; nullopt: nothing, nor did the one before.
std::optional<kv::KvWrite> UsageWrite(const Inode& inode, const meta::FileRecord& record) REQUIRES_LOCK(inode.mutex);

}  // namespace cairnfs::fs
