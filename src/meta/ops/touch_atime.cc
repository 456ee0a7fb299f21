#include "meta/access.h"

namespace cairnfs::meta {

void Namespace::TouchAtime(const Context& context, InodeId inode, Timestamp atime) {
  // A read does not fail because its atime cannot be stored.
  (void)RetryOnConflict(context, "touch", PaceOf(options_), [&](int) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store_, inode));
    if (loaded.record.atime == atime) return {};
    loaded.record.atime = atime;
    kv::Transaction transaction;
    transaction.IfRevision(InodeKey(inode), loaded.revision).Put(InodeKey(inode), loaded.record.Encode());
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return {};
  });
}

}  // namespace cairnfs::meta
