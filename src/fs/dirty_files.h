// DirtyFiles: the files whose content differs from their record, and those of them that the round at work publishes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/thread_annotations.h"
#include "fs/inode.h"
#include "fs/streams.h"

namespace cairnfs::fs {

class DirtyFiles {
 public:
  // All outlive it.
  DirtyFiles(store::ChunkStore& chunks, Streams& streams, InodeTable& table)
      : chunks_(chunks), streams_(streams), table_(table) {}

  // Any thread.

  // The content differs from its record from now on. REQUIRES: it did not.
  void Add(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // A file that differs still, for the next round.
  void Requeue(const InodePtr& inode) EXCLUDES_LOCK(mutex_);
  bool empty() const EXCLUDES_LOCK(mutex_);
  // Files that could not be published while others were, each with why. Takes inodes' locks.
  std::map<InodeId, Error> Failed() EXCLUDES_LOCK(mutex_);
  void NoteFailed(InodeId inode) EXCLUDES_LOCK(mutex_);

  // The thread that runs the round.

  enum class Which { kAll, kClosed };  // kClosed: and those that must be published, or have much that is not
  // Takes over the files of the round. Returns those that nobody is to publish any more: Unhold them once no operation
  // waits for the round.
  std::vector<InodePtr> TakeOver(Which which);
  const std::vector<InodePtr>& taken() const { return taken_; }
  void ClearTaken() { taken_.clear(); }
  struct Undrained {
    InodePtr inode;
    Error why;
  };
  // Waits until what was accepted of the files before the round is stored. Those that are returned are not: they are
  // published as far as they are stored.
  std::vector<Undrained> Drain();
  // The record of what is stored of the file; on failure the file comes again in the next round.
  Result<meta::FileRecord> MakeRecord(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The record tells all there is to know again: what is kept in memory goes once nobody has the file open.
  void Release(const InodePtr& inode);

  // What whoever waits for all is told. Of this round: bytes of some file had no space and wait for the next.
  std::optional<Error> shortage;
  std::optional<Error> loss;  // bytes of some file could not be stored, which nobody was told

 private:
  bool DiscardIfGone(const InodePtr& inode);
  std::optional<Error> WhyFailed(InodeId id) EXCLUDES_LOCK(mutex_);

  store::ChunkStore& chunks_;
  Streams& streams_;
  InodeTable& table_;

  mutable Mutex mutex_;  // after inodes' and that of the rounds
  std::vector<InodePtr> dirty_ GUARDED_BY(mutex_);
  std::set<InodeId> failed_ GUARDED_BY(mutex_);  // and perhaps published or dropped since

  std::vector<InodePtr> taken_;  // the round's
};

}  // namespace cairnfs::fs
