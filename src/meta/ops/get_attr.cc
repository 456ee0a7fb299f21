#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::GetAttr(InodeId inode) {
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(ahead, inode);
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(store, inode));
  return LoadAttr(store, inode, loaded.record);
}

}  // namespace cairnfs::meta
