#include "meta/access.h"

namespace cairnfs::meta {

Result<Attr> Namespace::GetAttr(InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadInode(store_, inode));
  return LoadAttr(store_, inode, loaded.record);
}

}  // namespace cairnfs::meta
