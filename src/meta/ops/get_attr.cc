#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::GetAttr(InodeId inode) {
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(ahead, inode, /*with_pending=*/true);
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(store, inode));
  CAIRNFS_ASSIGN_OR_RETURN(Attr attr, LoadAttr(store, inode, loaded.record));
  if (options_.remote && IsRegular(loaded.record)) CAIRNFS_RETURN_IF_ERROR(LoadPending(store, inode, attr.pending));
  return attr;
}

}  // namespace cairnfs::meta
