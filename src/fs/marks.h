// Marks: puts this host's marks of unpublished files (meta::UnpublishedMark) in transactions of their own. The creation
// of a file and a publish put theirs themselves.
//
// Invariant: while the answer to a put is awaited, SharedContent::marks_in_doubt counts the mark, the file stays
// changed, and no publish takes its mark away. Otherwise a mark that arrives late would call a whole file lost.
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

  // Any thread; waits for the store. An error: it is not known whether the marks were put; the next ResolveDoubt finds
  // out. Errors that the publish will meet as well are not returned here.
  Status Put(const Context& context, std::span<const InodePtr> files) EXCLUDES_LOCK(mutex_);
  // Puts the mark of one file that is in no round; a round takes it away again. An error: the mark is not there, or in
  // doubt. Does nothing if the file is unchanged, or has a mark.
  Status PutUntilPublished(const Context& context, const InodePtr& inode) EXCLUDES_LOCK(mutex_);

  // Finds out what became of marks whose answers were lost. Called by the thread that runs a round.
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
