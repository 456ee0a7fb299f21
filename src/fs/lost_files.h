// LostFiles: files that lost bytes, which were accepted and could not be stored. A file stays here until the bytes are
// written again, or it is removed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "fs/inode.h"
#include "meta/namespace.h"
#include "meta/refused_commit.h"

namespace cairnfs::fs {

class LostFiles {
 public:
  // Both outlive it.
  LostFiles(InodeTable& table, meta::Namespace& names) : table_(table), names_(names) {}

  void Note(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void Forget(InodeId id);
  // What is dropped unpublished, and so lost, is known for good from now on. Before a stop with a deadline.
  void NoteDroppedFromNow();
  void NoteDropped(InodeId id, uint64_t bytes);
  std::map<InodeId, uint64_t> Dropped();
  std::set<InodeId> Inodes();  // takes inodes' locks
  // A cause for each such file that the rename would give another path.
  Result<std::vector<meta::RefusalCause>> FindMoved(const Context& context, const meta::RenameParams& params);

 private:
  Mutex mutex_;  // taken after an inode's
  std::set<InodeId> inodes_ GUARDED_BY(mutex_);
  bool notes_dropped_ GUARDED_BY(mutex_) = false;
  std::map<InodeId, uint64_t> dropped_ GUARDED_BY(mutex_);
  InodeTable& table_;
  meta::Namespace& names_;
};

// The paths, below `directory`, of those inodes that lie there. Reads all names below it.
Result<std::map<InodeId, std::string>> FindNames(const Context& context, meta::Namespace& names, InodeId directory,
                                                 std::set<InodeId> inodes);

// The paths below the root of those of the inodes that the rename would give another one: what is renamed, and what
// lies below it, of which it reads all names.
Result<std::map<InodeId, std::string>> FindMoved(const Context& context, meta::Namespace& names,
                                                 const meta::RenameParams& params, const std::set<InodeId>& inodes);

}  // namespace cairnfs::fs
