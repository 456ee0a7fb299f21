#include "meta/access.h"

namespace cairnfs::meta {

void Namespace::TouchAtime(InodeId inode, Timestamp atime) {
  // An atime that cannot be kept is no failure of the read that it tells of.
  (void)RetryOnConflict("touch", PaceOf(options_), [&](int) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(store_, inode));
    if (loaded.record.atime == atime) return {};
    loaded.record.atime = atime;
    kv::Transaction transaction;
    transaction.IfRevision(InodeKey(inode), loaded.revision).Put(InodeKey(inode), loaded.record.Encode());
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
    return {};
  });
}

}  // namespace cairnfs::meta
