#include "meta/look_ahead.h"

namespace cairnfs::meta {

Result<Attr> Namespace::GetAttr(const Context& context, InodeId inode) {
  LookAhead ahead(store_);
  kv::KvStore& store = LookAt(context, ahead, inode);
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(context, store, inode));
  CAIRNFS_ASSIGN_OR_RETURN(Attr attr, LoadAttr(context, store, inode, loaded.record));
  if (options_.remote) attr.inode_revision = loaded.revision;
  return attr;
}

}  // namespace cairnfs::meta
