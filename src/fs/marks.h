// Marks: puts this host's marks of files that are not published (meta::UnpublishedMark), beside those that are part of
// another transaction: the making of a file, a publish.
//
// Invariant: while a mark may come yet, SharedContent::marks_in_doubt counts it, the file stays changed, and no publish
// takes its mark away. Else one that comes late would tell of a file that is whole that it is lost.
#pragma once

#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "fs/cluster_host.h"
#include "fs/inode.h"

namespace cairnfs::fs {

class Marks {
 public:
  // Both outlive it.
  Marks(kv::KvStore& kv, ClusterHost& host) : kv_(kv), host_(host) {}

  // Any thread; waits for the store. An error: it is not known whether the marks were put, and the next ResolveDoubt
  // finds out. Any other error is that of the publish too, which tells it.
  Status Put(const Context& context, std::span<const InodePtr> files) EXCLUDES_LOCK(mutex_);
  // The mark of a file that no round is at, which a round takes away again. Any error: it is not there, or in doubt.
  // Nothing to do where the file is not changed, or marked.
  Status PutUntilPublished(const Context& context, const InodePtr& inode) EXCLUDES_LOCK(mutex_);

  // Finds out what became of those whose answers were lost. The thread that runs a round.
  Status ResolveDoubt() EXCLUDES_LOCK(mutex_);
  bool in_doubt() const EXCLUDES_LOCK(mutex_);

 private:
  enum class After { kNothing, kPublish };
  struct Batch {
    kv::Transaction transaction;
    uint64_t session;
    After after;  // what is to become of the files
    std::vector<InodePtr> files;
  };
  // Of those that were changed under the session.
  Batch Prepare(std::span<const InodePtr> files, uint64_t session, After after) EXCLUDES_LOCK(mutex_);
  Result<uint64_t> Commit(const Context& context, Batch batch) EXCLUDES_LOCK(mutex_);
  static void Conclude(const Batch& batch, const Result<uint64_t>& revision);

  kv::KvStore& kv_;
  ClusterHost& host_;

  mutable Mutex mutex_;
  uint64_t operations_ GUARDED_BY(mutex_) = 0;
  std::vector<Batch> in_doubt_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
