#include "meta/look_ahead.h"
#include "meta/quota_records.h"

namespace cairnfs::meta {

Status Namespace::SetQuota(const Context& context, InodeId inode, InodeId quota) {
  return RetryOnConflict(context, "a change of a quota", PaceOf(options_), [&](int) -> Status {
    LookAhead ahead(store_);
    kv::KvStore& store = LookAt(context, ahead, inode);
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store, inode));
    InodeRecord& record = loaded.record;
    if (record.quota == quota || (!IsDirectory(record) && !IsRegular(record))) return {};
    // What lies in it has gone, and nothing is made in it any more.
    if (record.nlink == 0) return MakeError(ErrorCode::kNotFound, Describe(inode) + " was removed");
    record.quota = quota;
    kv::Transaction transaction;
    transaction.IfRevision(InodeKey(inode), loaded.revision).Put(InodeKey(inode), record.Encode());
    transaction.may_lengthen = true;
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return {};
  });
}

}  // namespace cairnfs::meta
