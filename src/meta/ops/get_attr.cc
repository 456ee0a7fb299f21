#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::GetAttr(const Context& context, InodeId inode) {
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(context, ahead, inode);
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store, inode));
  return LoadAttr(context, store, inode, loaded.record);
}

}  // namespace cairnfs::meta
